"""`python -m tests.sglang.small_drafter FOLDER`: export a small random drafter, in Eyrie's own environment."""

from __future__ import annotations

import sys

from eyrie.drafter.export import export
from tests.drafter.drafters import make_drafter

# Head sizes and vocabulary that SGLang's kernels and its padding of vocabularies to 64 rows take.
SHAPE = {"hidden_size": 128, "target_hidden_size": 128, "num_attention_heads": 4, "head_dim": 32,
         "num_key_value_heads": 2, "vocab_size": 512, "draft_vocab_size": 192}  # fmt: skip

if __name__ == "__main__":
    drafter = make_drafter(**SHAPE)
    target = {
        "hidden_size": 128, "vocab_size": 512, "num_hidden_layers": drafter.config.aux.layers, "dtype": "float32",
        "rope_theta": drafter.config.rope_theta, "max_position_embeddings": drafter.config.max_position_embeddings,
    }  # fmt: skip
    export(drafter, sys.argv[1], target)
