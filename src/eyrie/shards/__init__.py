"""The file formats between stages: token shards (Parquet) and hidden-state shards (safetensors with byte planes)."""
