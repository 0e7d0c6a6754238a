"""What the vault holds of a dataset already, told from ids and an index: a resumed run reaches its first open row
without parsing the prompts before it and without reading their replies."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from eyrie.generate.output import Counts, Output
from eyrie.generate.rows import Row, Unit, read_rows
from eyrie.vault import Word
from eyrie.vault.records import DATA

BATCH = 512  # rows of one question to the vault


class Stocked(NamedTuple):
    """A unit, and its output tokens when the vault surely holds all of it."""

    unit: Unit
    tokens: int | None
    word: Word | None  # what the vault says of its first turn


class Stock:
    """The units of a job in index order. Iterating goes on where `skip_held` stopped: one pass in all, flat memory."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self.rows = self.tokens = 0  # held, of what was skipped
        self._units = self._look_up()
        self._next: Stocked | None = None

    def __iter__(self) -> Iterator[Stocked]:
        if self._next is not None:
            first, self._next = self._next, None
            yield first
        yield from self._units

    def skip_held(self) -> bool:
        """Pass over the units that need no request, from the first on; whether those are all that the output needs.

        Units that may need one (several turns, rejected or cut answers) are replayed from the vault.
        """
        budget = self._output.settings.token_budget
        while budget is None or self.tokens < budget:
            stocked = next(self._units, None)
            if stocked is None:
                return budget is None or self._output.settings.up_to  # no more rows
            tokens = stocked.tokens
            if tokens is None and stocked.word is not None:
                tokens = self._output.tokens_of(stocked.unit)
            if tokens is None:
                self._next = stocked
                return False
            self.rows += 1
            self.tokens += tokens
        return True

    def _look_up(self) -> Iterator[Stocked]:
        output, repetitions = self._output, range(self._output.settings.repetitions)
        rows = read_rows(output.prompts)
        while batch := list(islice(rows, BATCH)):
            ids = [row.id for row in batch]
            words = output.vault.words(output.builder.identity_model, output.settings.dataset, ids)
            for row in batch:
                for repetition in repetitions:
                    word = words.get((row.id, 0, repetition))
                    whole = word is not None and is_whole(output, row, word)
                    yield Stocked(Unit(row, repetition), word.completion_tokens if word and whole else None, word)


def is_whole(output: Output, row: Row, word: Word) -> bool:
    """Whether the vault surely holds all of this conversation, told without reading any reply."""
    settings = output.settings
    if word.verdict not in DATA or row.has_turns or settings.rebuy:
        return False
    return not (word.verdict == "length" and (settings.drop_cut or settings.max_pieces > 1))


def survey(output: Output) -> Counts:
    """What is there and what is missing, for a message: rows that are surely whole are counted unread."""
    counts = Counts(token_budget=output.settings.token_budget, up_to=output.settings.up_to)
    for stocked in Stock(output):
        if counts.full:
            break
        counts.prompts += 1
        word = stocked.word
        if word is None:
            counts.open += 1
        elif stocked.tokens is not None:
            counts.answered += 1
            counts.turns += 1
            counts.completion_tokens += stocked.tokens
            counts.cost += word.cost
            counts.shared += word.shared
        else:
            counts.answered += output.replay(stocked.unit, counts) is not None
    return counts
