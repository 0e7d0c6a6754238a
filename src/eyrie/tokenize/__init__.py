"""The tokenize stage: generated conversations become token rows with the spans that the target wrote."""
