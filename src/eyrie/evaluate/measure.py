"""One set measured: both estimates, and the real decode that must equal plain greedy decoding."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from eyrie.drafter.model import Drafter
from eyrie.errors import InputError
from eyrie.evaluate.engine import TargetEngine
from eyrie.evaluate.estimates import Passes, Slots, chain_drafts, checked_slots, replay, right_in_a_row
from eyrie.evaluate.greedy import Answer, Prompt, greedy, prefill
from eyrie.evaluate.lossless import compare
from eyrie.evaluate.sets import Text
from eyrie.evaluate.speculative import speculate

PLAIN_WIDTH = 32  # prompts whose caches are held, and which plain greedy decoding runs, at once
DIGITS = 6  # of every figure in the file

Log = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """What the figures depend on besides the models: chain lengths (drafts a pass), limits, end tokens."""

    chain: int
    chains: tuple[int, ...]
    max_new: int
    rows: int
    width: int
    ends: frozenset[int]

    @classmethod
    def of(cls, evaluate: Mapping[str, Any], ends: Iterable[int]) -> Settings:
        """From the slice's `evaluate` part and the ids that end an answer."""
        return cls(
            chain=evaluate["chain_length"],
            chains=tuple(sorted(evaluate["chain_lengths"])),
            max_new=evaluate["max_new_tokens"],
            rows=evaluate["rows"],
            width=evaluate["width"],
            ends=frozenset(ends),
        )

    @property
    def longest(self) -> int:
        return max(*self.chains, self.chain)

    @property
    def room(self) -> int:
        """Cache positions needed behind a prompt."""
        return self.max_new + self.chain + 1


@dataclass
class Measured:
    """Running sums of one set or of one dataset in it."""

    settings: Settings
    slots: Slots = field(init=False)
    replayed: dict[int, Passes] = field(init=False)
    decoded: Passes = field(init=False)
    prompts: int = 0
    tokens: int = 0  # of the plain greedy answers
    text: int = 0  # answer tokens replayed ...
    greedy: int = 0  # ... and those of them that are the target's first choice

    def __post_init__(self) -> None:
        self.slots = Slots(self.settings.longest)
        self.replayed = {chain: Passes(chain) for chain in self.settings.chains}
        self.decoded = Passes(self.settings.chain)

    def report(self) -> dict[str, Any]:
        """The entry in evaluation.json; a figure without a slot or a pass behind it is left out."""
        decoded = {
            "acceptance_length": round(self.decoded.acceptance_length, DIGITS),
            "per_position": [round(share, DIGITS) for share in self.decoded.per_position],
            "passes": self.decoded.passes,
            "tokens": self.decoded.tokens,
        }
        means = self.slots.means(self.settings.chains)
        replayed = {str(chain): sums.acceptance_length for chain, sums in self.replayed.items() if sums.passes}
        return {
            "prompts": self.prompts,
            "tokens": self.tokens,
            "slots": self.slots.count,
            "slot_mean": {chain: round(value, DIGITS) for chain, value in means.items()},
            "chain_replay": {chain: round(value, DIGITS) for chain, value in replayed.items()},
            "greedy_share": round(self.greedy / self.text, DIGITS) if self.text else None,
            "decode": {str(self.settings.chain): decoded} if self.decoded.passes else {},
        }


class SetMeasure:
    """Measures one set, and keeps the same figures for each dataset of its prompts."""

    def __init__(self, name: str, engine: TargetEngine, drafter: Drafter, settings: Settings, log: Log) -> None:
        self.name, self.engine, self.drafter, self.settings, self.log = name, engine, drafter, settings, log
        self.total = Measured(settings)
        self.per_dataset: dict[str, Measured] = {}

    def report(self, *, per_dataset: bool = False) -> dict[str, Any]:
        """The set's entry in evaluation.json."""
        entry = self.total.report()
        if per_dataset:
            entry["per_dataset"] = {name: self.per_dataset[name].report() for name in sorted(self.per_dataset)}
        return entry

    def fitting(self, prompts: Sequence[Prompt]) -> list[Prompt]:
        """The distinct prompts whose answers fit into the target's context, at most `settings.rows`.

        Raises InputError when none fits.
        """
        kept: dict[tuple[int, ...], Prompt] = {}
        for prompt in prompts:
            if len(prompt.tokens) + self.settings.room <= self.engine.max_positions:
                kept.setdefault(prompt.tokens, prompt)
        chosen = list(kept.values())[: self.settings.rows]
        if not chosen:
            raise InputError(
                f"{self.name}: no prompt leaves room for {self.settings.max_new} new tokens within the target's "
                f"{self.engine.max_positions} positions; lower evaluate.max_new_tokens"
            )
        self.log(f"{self.name}: decoding {len(chosen)} of {len(prompts)} prompts")
        return chosen

    def estimate(self, text: Text, *, replayed: bool) -> None:
        """Count the trained slots of all spans of `text`; with `replayed`, walk its first answer as well, at every
        chain length and as far as a decode may go."""
        slots, checked = checked_slots(text.spans, len(text.tokens), self.settings.longest)
        slots = slots.to(text.tokens.device)
        drafts = chain_drafts(self.drafter, text.aux, text.tokens, slots, self.settings.longest)
        right = right_in_a_row(drafts, text.argmax, slots).cpu()
        for sums in self._both(text.prompt.dataset):
            sums.slots.add(right, checked)
        if replayed:
            self._replay(text, right_in_a_row(drafts, follow(text.tokens), slots))

    def _replay(self, text: Text, right: Tensor) -> None:
        """`right int64[M]`: leading drafts of the trained slots that equal the text; those of the first answer lead."""
        start, end = text.spans[0]
        end = min(end, start + self.settings.max_new)
        greedy = int((text.argmax[start - 1 : end - 1] == text.tokens[start:end]).sum())
        for sums in self._both(text.prompt.dataset):
            sums.text += end - start
            sums.greedy += greedy
            for chain in self.settings.chains:
                sums.replayed[chain].merge(replay(right, (start, end), chain))

    def decode(self, prompts: Sequence[Prompt], *, keep_states: bool = False) -> list[Text]:
        """Plain greedy and speculative decoding of `prompts`, compared.

        Returns the greedy texts with their states when `keep_states`. Raises EyrieError when a token differs.
        """
        texts: list[Text] = []
        settings = self.settings
        for first in range(0, len(prompts), PLAIN_WIDTH):
            part = prompts[first : first + PLAIN_WIDTH]
            clock = [time.monotonic()]
            start = prefill(self.engine, part, settings.room)
            clock.append(time.monotonic())
            lengths = start.cache.lengths.clone()
            plain = greedy(self.engine, start, settings.ends, settings.max_new, keep_states=keep_states)
            clock.append(time.monotonic())
            # Both decoders start from the same prefill, and the second must not find what the first left behind.
            start.cache.lengths[:] = lengths
            start.cache.forget()
            fast = speculate(
                self.engine, self.drafter, part, start, settings.ends, settings.max_new, settings.chain, settings.width
            )
            clock.append(time.monotonic())
            tokens = compare(self.name, self.engine, part, plain, fast)
            filled, decoded, speculated = (after - before for before, after in zip(clock, clock[1:], strict=False))
            self.log(
                f"{self.name}: {len(part)} prompts, {tokens} tokens equal; prefill {filled:.1f} s, "
                f"plain greedy {decoded:.1f} s, speculative {speculated:.1f} s"
            )
            for prompt, one, other in zip(part, plain, fast, strict=True):
                for sums in self._both(prompt.dataset):
                    sums.prompts += 1
                    sums.tokens += len(one.tokens)
                    sums.decoded.merge(other.passes)
            if keep_states:
                texts += [_text(prompt, answer) for prompt, answer in zip(part, plain, strict=True)]
        return texts

    def _both(self, dataset: str) -> tuple[Measured, Measured]:
        return self.total, self.per_dataset.setdefault(dataset, Measured(self.settings))


def follow(tokens: Tensor) -> Tensor:
    """`int64[T]`: the token after each one, -1 after the last, which no draft equals."""
    return torch.cat([tokens[1:], tokens.new_tensor([-1])])


def _text(prompt: Prompt, answer: Answer) -> Text:
    """A plain greedy answer as text with states; the last token has none, and no slot reads it."""
    assert answer.aux is not None
    tokens = torch.tensor([*prompt.tokens, *answer.tokens], device=answer.aux.device)
    padded = torch.cat([answer.aux, answer.aux[-1:]])
    return Text(prompt, tokens, [(len(prompt.tokens), len(tokens))], padded, follow(tokens))
