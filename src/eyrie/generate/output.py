"""The generated file and its summary: a pure function of the prompts, the settings and what the vault holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from eyrie.files import write_json, write_jsonl_zst
from eyrie.gateway.reply import token_ids
from eyrie.gateway.request import RequestBuilder, plain
from eyrie.generate.conversation import Conversation, take
from eyrie.generate.rows import Unit, read_units
from eyrie.generate.settings import Settings
from eyrie.vault import Answer, Identity, Vault
from eyrie.vault.account import books as books_of
from eyrie.vault.money import MICRO

FORMAT = "eyrie-generated-1"


class Incomplete(Exception):
    """The vault does not hold every answer that the output needs; the counts say what is missing."""


@dataclass
class Counts:
    """What the output holds and lacks. Tokens by the server's count, money in micro-dollars."""

    prompts: int = 0  # units looked at: rows times repetitions, up to the token budget
    answered: int = 0  # rows in the output
    open: int = 0  # rows with a question that the vault has no word on
    turns: int = 0
    rejected: Counter[str] = field(default_factory=Counter)  # rows without any usable answer, by reason
    ended: Counter[str] = field(default_factory=Counter)  # conversations in the output, by how they ended
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    cached_tokens: int = 0
    cost: int = 0
    changed: int = 0
    shared: int = 0
    providers: dict[str, Counter[str]] = field(default_factory=dict)
    token_budget: int | None = None
    up_to: bool = False  # fewer tokens will do when there are no more rows

    def add(self, answer: Answer, changed: bool) -> None:
        """Count one answer of the output."""
        self.turns += 1
        self.changed += changed
        self.shared += answer.shared
        self.cost += answer.cost
        for name in ("prompt_tokens", "completion_tokens", "reasoning_tokens", "cached_tokens"):
            setattr(self, name, getattr(self, name) + getattr(answer.usage, name))
        provider = self.providers.setdefault(answer.provider or "unnamed", Counter())
        provider.update(answers=1, completion_tokens=answer.usage.completion_tokens, cost_microusd=answer.cost)

    @property
    def full(self) -> bool:
        """The token budget is reached."""
        return self.token_budget is not None and self.completion_tokens >= self.token_budget

    @property
    def missing(self) -> str:
        """Why the output is not complete; empty when it is."""
        if self.open:
            return f"{self.open} of {self.prompts} rows are still open"
        if self.token_budget is not None and not self.full and not self.up_to:
            return (
                f"all {self.prompts} rows gave {self.completion_tokens} of {self.token_budget} tokens; "
                "raise the dataset's rows or lower its tokens"
            )
        return ""


@dataclass
class Output:
    """Replays a dataset's conversations from the vault."""

    vault: Vault
    settings: Settings
    builder: RequestBuilder
    prompts: Path

    def rows(self, counts: Counts, *, stop_when_open: bool) -> Iterator[dict[str, Any]]:
        """Output rows in index order until the token budget is reached. Raises Incomplete at the end, or at the
        first open row when `stop_when_open`."""
        counts.token_budget, counts.up_to = self.settings.token_budget, self.settings.up_to
        for unit in read_units(self.prompts, self.settings.repetitions):
            if counts.full:
                break
            counts.prompts += 1
            row = self.replay(unit, counts)
            if row is not None:
                counts.answered += 1
                yield row
            elif counts.open and stop_when_open:
                break
        if counts.missing:
            raise Incomplete(counts.missing)

    def identity(self, unit: Unit, turn: int) -> Identity:
        """The vault's identity of an answer."""
        return Identity(self.builder.identity_model, self.settings.dataset, unit.row["id"], turn, unit.repetition)

    def tokens_of(self, unit: Unit) -> int | None:
        """Output tokens of a conversation that the vault holds to its end; None when a question is open."""
        counts = Counts()
        self.replay(unit, counts)
        return None if counts.open else counts.completion_tokens

    def replay(self, unit: Unit, counts: Counts) -> dict[str, Any] | None:
        """The output row of a unit as far as the vault holds it (None: nothing of it), counted into `counts`."""
        talk = Conversation.start(unit.row, self.settings.user_turns, self.settings.max_pieces)
        answers: list[dict[str, Any]] = []
        while talk.ended is None:
            answer = self.vault.answer(self.identity(unit, talk.turn))
            request = talk.request(self.builder, unit.repetition)
            changed = answer is not None and answer.fingerprint != request.fingerprint
            if answer is None or (changed and (self.settings.rebuy or not answer.is_data)):
                counts.open += 1
                talk.abandon("open")
                break
            before = talk.turn
            take(talk, answer, drop_cut=self.settings.drop_cut)
            if talk.turn > before:
                counts.add(answer, changed)
                entry = self._answer(answer, before, talk.answered_at[-1], changed)
                if len(answers) == len(talk.answered_at):
                    entry = joined(answers.pop(), entry)
                answers.append(entry)
        if not answers:
            if talk.ended != "open":
                counts.rejected[str(talk.ended)] += 1
            return None
        counts.ended[str(talk.ended)] += 1
        tools = {"tools": unit.row["tools"]} if unit.row.get("tools") else {}
        return {
            "id": unit.id, "index": unit.row["index"], "messages": talk.messages, **tools, "answers": answers,
            "source": unit.row.get("source", {}),
        }  # fmt: skip

    def _answer(self, answer: Answer, turn: int, message: int, changed: bool) -> dict[str, Any]:
        usage = answer.usage
        return {
            "turn": turn, "message": message, "finish_reason": answer.finish_reason, "provider": answer.provider,
            "model": answer.served_model, "generation_id": answer.generation_id, "cost_microusd": answer.cost,
            "usage": {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens,
                      "reasoning_tokens": usage.reasoning_tokens, "cached_tokens": usage.cached_tokens},
            "request_fingerprint": answer.fingerprint, "changed": changed, **token_ids(answer.reply),
        }  # fmt: skip

    def write(self, path: Path, summary: Path, *, partial: bool) -> Counts:
        """Write both files. Raises Incomplete, with neither written, when something is missing and not `partial`."""
        counts, why = Counts(), ""

        def lenient() -> Iterator[dict[str, Any]]:
            nonlocal why
            try:
                yield from self.rows(counts, stop_when_open=not partial)
            except Incomplete as reason:
                if not partial:
                    raise
                why = str(reason)

        write_jsonl_zst(path, lenient())
        write_json(summary, self.summary(counts, why))
        return counts

    def summary(self, counts: Counts, why: str) -> dict[str, Any]:
        """The summary as JSON; every figure follows from the vault, so equal vaults give equal summaries."""
        model, dataset = self.builder.identity_model, self.settings.dataset
        books, account = self.vault.spent(model, dataset), books_of(self.vault.query, model, dataset)
        return {
            "format": FORMAT,
            "dataset": self.settings.dataset,
            "gateway": self.settings.gateway,
            "model": self.builder.providers.model,
            "sampling": {**self.settings.sampling.fields(0), "thinking": self.settings.thinking},
            "complete": not why,
            "continued": self.settings.continued,
            "why_incomplete": why or None,
            "rows": {"prompts": counts.prompts, "answered": counts.answered, "open": counts.open,
                     "rejected": dict(sorted(counts.rejected.items()))},
            "answers": counts.turns,
            "ended": dict(sorted(counts.ended.items())),
            "tokens": {"prompt": counts.prompt_tokens, "completion": counts.completion_tokens,
                       "reasoning": counts.reasoning_tokens, "cached": counts.cached_tokens,
                       "budget": counts.token_budget},
            "changed": counts.changed,
            "shared": counts.shared,
            "dollars": {"answers": plain(Decimal(counts.cost) / MICRO), "billed": plain(books["billed"]),
                        "wasted": plain(books["wasted"]),
                        "per_million_output": _per_million(counts)},
            "waste": {"attempts": account.waste.attempts, "dollars": plain(account.waste.dollars),
                      "reasons": {name: {"attempts": part.attempts, "dollars": plain(part.dollars)}
                                  for name, part in sorted(account.waste_by_reason.items())}},
            "duplicates": account.duplicates,
            "losses": account.losses,
            "providers": {name: dict(sorted(c.items())) for name, c in sorted(counts.providers.items())},
        }  # fmt: skip


def joined(first: dict[str, Any], rest: dict[str, Any]) -> dict[str, Any]:
    """One answer that took several requests: tokens and money added, the prompt of the first, the end of the last."""
    usage = dict(first["usage"])
    for name in ("completion_tokens", "reasoning_tokens"):
        usage[name] += rest["usage"][name]
    return {
        **first, "usage": usage, "finish_reason": rest["finish_reason"], "pieces": first.get("pieces", 1) + 1,
        "cost_microusd": first["cost_microusd"] + rest["cost_microusd"], "changed": first["changed"] or rest["changed"],
        "token_ids": first["token_ids"] + rest["token_ids"],
    }  # fmt: skip


def _per_million(counts: Counts) -> str | None:
    """Dollars per million output tokens of the answers in use, to the cent's hundredth."""
    if not counts.completion_tokens:
        return None
    return plain((Decimal(counts.cost) / counts.completion_tokens).quantize(Decimal("0.0001")))
