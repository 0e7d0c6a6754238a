"""What can go wrong, as types: each carries one sentence for the user and the exit code of the command."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every `eyrie` command; a script may switch on them."""

    OK = 0
    FAILED = 1  # a defect in Eyrie or the machine: the only case with a traceback
    USAGE = 2  # bad input, configuration or arguments
    MISSING = 3  # something this machine lacks: a key, a GPU, a model, disk space
    KEY_REFUSED = 10
    CREDITS_OUT = 11
    BUDGET_REACHED = 12
    POLICY_EMPTY = 13
    TOO_MANY_REJECTS = 14
    INCOMPLETE = 15  # prompts ran out before the token budget was reached, or rows are still open
    INTERRUPTED = 130


class EyrieError(Exception):
    """A failure whose message is all that the user needs: what is wrong, where, and what to do.

    Commands print it as one line on stderr and exit with `code`; no traceback is shown.
    """

    code: ExitCode = ExitCode.FAILED

    def __init__(self, message: str, *, code: ExitCode | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code


class InputError(EyrieError):
    """A file, row, key or argument that cannot be right; the message names it."""

    code = ExitCode.USAGE


class MissingError(EyrieError):
    """Something that the job needs and this machine does not have (key, GPU, model files, disk)."""

    code = ExitCode.MISSING


def check_known(key: str, name: str, known: Iterable[str], what: str) -> None:
    """Raises InputError when `name`, given under the configuration's `key`, is none of `known`: it "`what`", and the
    nearest that exists is named."""
    names = list(known)
    if name not in names:
        close = get_close_matches(name, names, n=1, cutoff=0.4)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise InputError(f"{key}: {name!r} {what}{hint}; there are {', '.join(names) or 'none'}")
