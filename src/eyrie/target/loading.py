"""The target's tokenizer and model as transformers objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eyrie.errors import InputError
from eyrie.files import read_json
from eyrie.target.receipt import TargetReceipt

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def load_tokenizer(receipt: TargetReceipt, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """The target's tokenizer with its chat template. Raises InputError when transformers cannot load it.

    A folder that names the plain fast class gets it directly: AutoTokenizer would give the same object after loading
    torch, some four seconds in jobs that compute nothing.
    """
    import transformers

    named = read_json(f"{receipt.path}/tokenizer_config.json").get("tokenizer_class")
    plain = named == "PreTrainedTokenizerFast" and not trust_remote_code
    return _load(getattr(transformers, named if plain else "AutoTokenizer"), receipt, trust_remote_code)


def load_model(receipt: TargetReceipt, dtype: str = "float32", trust_remote_code: bool = False) -> PreTrainedModel:
    """The target in evaluation mode on the CPU, its weights in `dtype`. Raises InputError when it cannot be loaded."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # a bar in a log file is one line of noise

    return _load(AutoModelForCausalLM, receipt, trust_remote_code, dtype=getattr(torch, dtype)).eval()


def _load(factory: Any, receipt: TargetReceipt, trust_remote_code: bool, **options: Any) -> Any:
    try:
        return factory.from_pretrained(
            receipt.path, trust_remote_code=trust_remote_code, local_files_only=True, **options
        )
    except (OSError, ValueError, ImportError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        hint = "; set target.trust_remote_code=true if you trust it" if "trust_remote_code" in str(error) else ""
        raise InputError(f"{receipt.path}: transformers cannot load the target ({first}){hint}") from None
