"""Which token ids steer a chat: the ones that end a turn, and all that no text may smuggle in."""

from __future__ import annotations

import json
import re
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from eyrie.chat.render import encode, render_messages
from eyrie.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_PROBE = "eyrie"  # any word no template writes itself
_end_of_turn: weakref.WeakKeyDictionary[PreTrainedTokenizerBase, int] = weakref.WeakKeyDictionary()


def special_token_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Ids of all control tokens: the named ones (bos, eos, …) and every added token marked special."""
    added = {index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
    return added | set(tokenizer.all_special_ids)


def control_pattern(tokenizer: PreTrainedTokenizerBase) -> re.Pattern[str]:
    """Matches every piece of text that the tokenizer would turn into a control token."""
    texts = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    texts |= set(tokenizer.all_special_tokens)
    texts.discard("")
    if not texts:
        return re.compile(r"(?!)")
    return re.compile("|".join(re.escape(text) for text in sorted(texts, key=lambda text: (-len(text), text))))


def end_of_turn_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """Id of the token with which the chat template closes an assistant turn, else the eos id.

    It is read off a rendered turn, so no family's spelling is assumed. Raises InputError when the template closes a
    turn without a special token and the tokenizer has no eos token.
    """
    known = _end_of_turn.get(tokenizer)
    if known is None:
        known = _end_of_turn[tokenizer] = _find_end_of_turn(tokenizer)
    return known


def _find_end_of_turn(tokenizer: PreTrainedTokenizerBase) -> int:
    turn = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _PROBE}]
    text = render_messages(tokenizer, turn, add_generation_prompt=False)
    special = special_token_ids(tokenizer)
    for index in encode(tokenizer, text[text.rindex(_PROBE) + len(_PROBE) :]):
        if index in special:
            return index
    if tokenizer.eos_token_id is None:
        raise InputError(f"{tokenizer.name_or_path}: neither the chat template nor an eos token ends a turn")
    return int(tokenizer.eos_token_id)


def end_token_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Ids at which generation stops: eos, the template's end of turn, and those of generation_config.json."""
    found = {end_of_turn_id(tokenizer)}
    if tokenizer.eos_token_id is not None:
        found.add(int(tokenizer.eos_token_id))
    path = Path(str(tokenizer.name_or_path)) / "generation_config.json"
    if path.is_file():
        try:
            listed = json.loads(path.read_bytes()).get("eos_token_id")
        except ValueError as error:
            raise InputError(f"{path}: not valid JSON ({error})") from None
        if listed is not None:
            found |= {int(index) for index in (listed if isinstance(listed, list) else [listed])}
    return found
