"""Encoding many rendered chats: every piece between control tokens once, all pieces in one parallel batch.

A tokenizer finds its added tokens first and encodes what lies between them piece by piece, so a piece has the same
ids wherever it stands. The prompts of one conversation repeat all earlier turns; here each turn is encoded once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class BatchEncoder:
    """Encodes texts to exactly the ids of `tokenizer.encode(text, add_special_tokens=False)`."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder
        self.control = {token.content: index for index, token in added.items()}
        self.pattern = re.compile(
            "(" + "|".join(re.escape(text) for text in sorted(self.control, key=lambda t: (-len(t), t))) + ")"
        )
        self.pieces = bool(added) and pieces_are_independent(tokenizer)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, no special tokens added."""
        if not self.pieces:
            return self._encode_plain(texts)
        split = [self.pattern.split(text) for text in texts]  # odd places hold added tokens
        unique = {piece: None for parts in split for piece in parts[::2] if piece}
        ids = dict(zip(unique, self._encode_plain(list(unique)), strict=True))
        found = []
        for parts in split:
            whole: list[int] = []
            for number, part in enumerate(parts):
                if number % 2:
                    whole.append(self.control[part])
                elif part:
                    whole += ids[part]
            found.append(whole)
        return found

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """Text of each sequence, special tokens written out."""
        if not self.tokenizer.is_fast:
            return [self.tokenizer.decode(ids, clean_up_tokenization_spaces=False) for ids in sequences]
        return self.tokenizer.backend_tokenizer.decode_batch(list(sequences), skip_special_tokens=False)

    def _encode_plain(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        if not self.tokenizer.is_fast:
            return [self.tokenizer.encode(text, add_special_tokens=False) for text in texts]
        backend = self.tokenizer.backend_tokenizer
        backend.no_truncation()
        backend.no_padding()
        return [encoding.ids for encoding in backend.encode_batch_fast(list(texts), add_special_tokens=False)]


def pieces_are_independent(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether text between added tokens is encoded without regard to its place.

    Not so when an added token eats spaces beside it or is matched only in normalised text, nor for SentencePiece-like
    tokenizers, which treat the beginning of the whole text in a way of their own.
    """
    if not tokenizer.is_fast:
        return False
    if any(t.lstrip or t.rstrip or t.single_word or t.normalized for t in tokenizer.added_tokens_decoder.values()):
        return False
    backend = tokenizer.backend_tokenizer
    shape = f"{backend.normalizer} {backend.pre_tokenizer}"
    return not any(kind in shape for kind in ("Metaspace", "Prepend", "Strip"))
