"""A seeded order of prompts whose first N stay the first N when more are taken, held in memory of N rows.

A prompt's place is decided by the hash of the seed and its id alone. So reading may go in any order, `rows` may grow,
and what was bought for the first prompts is never replaced.
"""

from __future__ import annotations

import hashlib
import heapq
from dataclasses import dataclass, field
from typing import Any

Key = tuple[int, str]


def place(seed: int, identity: str, digest: str) -> Key:
    """Where a prompt stands: 64 bits of the hash of seed and id; the content's digest breaks ties of equal ids."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{identity}".encode()).digest()[:8], "big"), digest


@dataclass
class Selection:
    """The first `size` distinct prompts of the seeded order, of all that were offered.

    Of prompts with equal content (or equal id) the first in the order is kept. Rows that fall out are never needed
    again: `size` distinct ones stand before them. Memory: `size` rows, and 16 bytes or so per duplicate met.
    """

    size: int
    seed: int
    _heap: list[tuple[int, str, str]] = field(default_factory=list)  # max-heap by negated place: (-place, digest, id)
    _held: dict[str, tuple[Key, str, Any]] = field(default_factory=dict)  # id -> (place, digest, row)
    _by_digest: dict[str, str] = field(default_factory=dict)  # digest -> id
    _duplicates: list[int] = field(default_factory=list)

    def wants(self, identity: str) -> bool:
        """False when a prompt with this id cannot be among the first `size`, whatever it says."""
        if len(self._held) < self.size:
            return True
        return place(self.seed, identity, "")[0] <= self.last

    @property
    def last(self) -> int:
        """The place of the last prompt kept so far; everything up to it is decided."""
        self._clean()
        return -self._heap[0][0] if self._heap else 0

    @property
    def full(self) -> bool:
        return len(self._held) >= self.size

    def offer(self, identity: str, digest: str, row: Any) -> None:
        """Keep `row` if it is among the first; `digest` is equal for equal prompts."""
        key = place(self.seed, identity, digest)
        rivals = {identity, self._by_digest.get(digest, identity)} & self._held.keys()
        if any(self._held[rival][0] <= key for rival in rivals):
            self._duplicates.append(key[0])
            return
        for rival in rivals:
            held_key, held_digest, _ = self._held[rival]
            self._duplicates.append(held_key[0])
            self._forget(rival, held_digest)
        self._held[identity] = (key, digest, row)
        self._by_digest[digest] = identity
        heapq.heappush(self._heap, (-key[0], digest, identity))
        if len(self._held) > self.size:
            self._clean()
            _, worst_digest, worst = self._heap[0]
            self._forget(worst, worst_digest)

    def _forget(self, identity: str, digest: str) -> None:
        del self._held[identity]
        self._by_digest.pop(digest, None)

    def _clean(self) -> None:
        """Drop heap entries whose row was replaced or forgotten."""
        while self._heap:
            negated, digest, identity = self._heap[0]
            held = self._held.get(identity)
            if held is not None and held[0] == (-negated, digest):
                return
            heapq.heappop(self._heap)

    def duplicates(self) -> int:
        """How many offered prompts were left out because an equal one stands before them in what is kept."""
        return sum(1 for duplicate in self._duplicates if self.decided(duplicate))

    def decided(self, where: int) -> bool:
        """Whether a place lies in the range of the order that was taken (all of it, when fewer were found)."""
        return not self.full or where <= self.last

    def rows(self) -> list[Any]:
        """What is kept, in order."""
        return [row for _, _, row in sorted(self._held.values(), key=lambda held: held[0])]
