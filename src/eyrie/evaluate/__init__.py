"""Acceptance of a drafter: two estimates from recorded states, and the truth by lossless speculative decoding."""
