"""What one process did, counted as it happens: for progress lines and its final account."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal

from eyrie.vault import Usage


@dataclass
class Part:
    """Answers of one endpoint. Tokens by the server's count, `cost` in dollars, failures included."""

    answers: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    tokens: int = 0  # output, reasoning included
    reasoning_tokens: int = 0
    cost: Decimal = Decimal(0)


@dataclass
class Tally:
    """One process's counts. The dataset's own figures come from the vault (`Output.summary`)."""

    shared: int = 0
    held_back: int = 0  # rows that wait now, because a lost request of theirs may still be being answered
    rejected: int = 0
    faults: dict[str, int] = field(default_factory=dict)  # attempts without a usable answer, by reason
    endpoints: dict[str, Part] = field(default_factory=dict)  # by provider name; "" where the reply named none

    def answered(self, provider: str | None, usage: Usage, cost: Decimal) -> None:
        """A usable answer is on disk."""
        part = self._part(provider)
        part.answers += 1
        part.prompt_tokens += usage.prompt_tokens
        part.tokens += usage.completion_tokens
        part.reasoning_tokens += usage.reasoning_tokens
        part.cost += cost

    def failed(self, provider: str | None, reason: str, cost: Decimal | None) -> None:
        """An attempt gave no usable answer; `cost` None is not known yet."""
        self.faults[reason] = self.faults.get(reason, 0) + 1
        part = self._part(provider)
        part.failed += 1
        part.cost += cost or 0

    def _part(self, provider: str | None) -> Part:
        return self.endpoints.setdefault(provider or "", Part())

    def total(self) -> Part:
        """All endpoints together."""
        whole = Part()
        for part in self.endpoints.values():
            for name, value in vars(part).items():
                setattr(whole, name, getattr(whole, name) + value)
        return whole

    @property
    def tokens(self) -> int:
        return sum(part.tokens for part in self.endpoints.values())

    @property
    def cost(self) -> Decimal:
        return sum((part.cost for part in self.endpoints.values()), Decimal(0))
