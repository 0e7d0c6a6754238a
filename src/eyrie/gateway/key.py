"""The API key: read where it is used, put into one header, redacted everywhere else."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from eyrie.errors import InputError, MissingError

VARIABLE = "OPENROUTER_API_KEY"
HIDDEN = "[key]"
_LIKE_A_KEY = re.compile(r"sk-(?:or-|proj-)?[A-Za-z0-9_-]{16,}")


class ApiKey:
    """A secret that prints as `[key]`. `ApiKey("")` is no key: no header."""

    __slots__ = ("_secret",)

    def __init__(self, secret: str) -> None:
        self._secret = secret

    def __repr__(self) -> str:
        return HIDDEN if self._secret else "no key"

    __str__ = __repr__

    def __bool__(self) -> bool:
        return bool(self._secret)

    def __reduce__(self) -> str:
        raise TypeError("a key is never pickled")

    @property
    def mark(self) -> str:
        """Eight hex digits that tell this key from another one and nothing about it."""
        return hashlib.sha256(f"eyrie key mark {self._secret}".encode()).hexdigest()[:8]

    def headers(self) -> dict[str, str]:
        """The one header that carries the key."""
        return {"Authorization": f"Bearer {self._secret}"} if self._secret else {}

    def redact(self, text: str) -> str:
        """`text` without this key and without anything that looks like one (providers echo keys in errors)."""
        if self._secret:
            text = text.replace(self._secret, HIDDEN)
        return _LIKE_A_KEY.sub(HIDDEN, text)

    def redact_bytes(self, data: bytes) -> bytes:
        """`redact` for a reply's bytes: only the literal key, since an answer may rightly speak of key formats."""
        return data.replace(self._secret.encode(), HIDDEN.encode()) if self._secret else data


NO_KEY = ApiKey("")


def read_key(kind: str, api_key_file: str | None, environment: Mapping[str, str] = os.environ) -> ApiKey:
    """The key of a gateway of `kind`; `openrouter` must have one, `openai` may, `embedded` has none.

    Raises MissingError when there is none, InputError when the file holds no single word.
    """
    if kind == "embedded":
        return NO_KEY
    if api_key_file:
        try:
            secret = Path(api_key_file).expanduser().read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise MissingError(f"gateway.api_key_file={api_key_file}: cannot be read ({_why(error)})") from None
        if not _is_header_safe(secret):
            raise InputError(f"gateway.api_key_file={api_key_file}: must hold the key alone, on one line")
        return ApiKey(secret)
    secret = environment.get(VARIABLE, "").strip() if kind == "openrouter" else ""
    if kind == "openrouter" and not secret:
        raise MissingError(
            f"no key for OpenRouter: name a file that holds it in gateway.api_key_file, or set {VARIABLE}"
        )
    if secret and not _is_header_safe(secret):
        raise InputError(f"{VARIABLE}: must be the key alone, without spaces or line breaks")
    return ApiKey(secret)


def _is_header_safe(secret: str) -> bool:
    return bool(secret) and secret.isascii() and secret.isprintable() and " " not in secret


def _why(error: Exception) -> str:
    return error.strerror or "error" if isinstance(error, OSError) else "not UTF-8 text"
