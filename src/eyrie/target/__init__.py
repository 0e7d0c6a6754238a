"""The target model: found or converted once, kept in the store, described by a receipt.

Importing this package needs neither torch nor transformers; `load_tokenizer` and `load_model` import what they use.
"""

from eyrie.target.loading import load_model, load_tokenizer
from eyrie.target.receipt import TargetReceipt, load_receipt, text_config

__all__ = ["TargetReceipt", "load_model", "load_receipt", "load_tokenizer", "text_config"]
