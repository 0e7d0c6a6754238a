"""Training: packed batches, the unrolled draft steps, the loop and its checkpoints."""
