"""Capture: run the target over finished conversations and keep the hidden states that the drafter learns from."""
