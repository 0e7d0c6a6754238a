"""Commands that belong to no stage."""
