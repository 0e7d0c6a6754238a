"""A streamed chat completion, assembled into the reply that the same request gives without streaming.

Bytes are cut on b"\\n" only: servers write U+2028 and its kin raw inside JSON, and every text-line splitter (httpx's
`aiter_lines` among them) would break an event in two there.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from eyrie.gateway.reply import parse

DONE = b"[DONE]"
SPOKEN = ("content", "reasoning", "reasoning_content", "refusal")  # text that comes in pieces
DETAIL_TEXTS = ("text", "summary", "data")  # of one entry of `reasoning_details`
ID_LISTS = ("token_ids", "response_token_ids", "output_token_ids")  # ids that come in pieces, by server
_OWN = ("choices", "object", "error")  # top-level keys of a chunk that are not simply copied


@dataclass(frozen=True)
class Body:
    """A response's body as one reply. `problem`: the word for why it is not a whole one, None when it may be."""

    raw: bytes = field(repr=False)
    problem: str | None = None


async def read_body(response: httpx.Response) -> Body:
    """Read a response to its end: an event stream assembled, anything else as it is.

    What the server sent decides, not what was asked for: errors before the first token come as plain JSON, and a
    server that cannot stream answers whole. Raises httpx.HTTPError.
    """
    if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
        return Body(await response.aread())
    return await assemble(response.aiter_bytes())


async def assemble(pieces: AsyncIterator[bytes]) -> Body:
    """The reply in a stream of server-sent events, however its bytes are cut."""
    events, assembly, head = Events(), Assembly(), list[bytes]()
    async for piece in pieces:
        if not assembly.chunks:
            head.append(piece)
        for data in events.feed(piece):
            assembly.add(data)
    for data in events.close():
        assembly.add(data)
    raw = b"".join(head)
    if not assembly.chunks and raw.lstrip()[:1] in (b"", b"<", b"{"):  # no event at all, but a page or plain JSON
        return Body(raw)
    return Body(assembly.reply(), assembly.problem)


class Events:
    """The `data` of server-sent events, from bytes. Comments (`: KEEP-ALIVE`) and other fields are dropped."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []  # of a line whose end has not come; a list, since a line may be megabytes
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The data of each event that ends within `piece`."""
        *lines, rest = piece.split(b"\n")
        for line in lines:
            if self._rest:
                line = b"".join([*self._rest, line])
                self._rest = []
            line = line.removesuffix(b"\r")
            if line:
                self._line(line)
            elif self._data:
                yield self._event()
        if rest:
            self._rest.append(rest)

    def close(self) -> Iterator[bytes]:
        """What is left at the end of the stream: a last event without its blank line."""
        if self._rest:
            self._line(b"".join(self._rest).removesuffix(b"\r"))
        if self._data:
            yield self._event()

    def _line(self, line: bytes) -> None:
        line = line.removeprefix(b"\xef\xbb\xbf")
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))

    def _event(self) -> bytes:
        data, self._data = b"\n".join(self._data), []
        return data


@dataclass
class Assembly:
    """Chunks so far. Pieces of text are joined once, at the end: a long answer has tens of thousands."""

    chunks: int = 0
    done: bool = False
    broken: bool = False
    _top: dict[str, Any] = field(default_factory=dict)
    _choice: dict[str, Any] = field(default_factory=dict)
    _texts: dict[str, list[str]] = field(default_factory=dict)
    _details: list[dict[str, Any]] = field(default_factory=list)
    _calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    _extra: dict[str, Any] = field(default_factory=dict)  # other keys of the message
    _spoke: bool = False  # some choice came

    def add(self, data: bytes) -> None:
        """One event's data."""
        if data.strip() == DONE:
            self.done = True
            return
        try:
            chunk = parse(data)
        except ValueError:
            chunk = None
        if not isinstance(chunk, dict):
            self.broken = True
            return
        self.chunks += 1
        for key, value in chunk.items():
            if value is not None and key not in _OWN:
                self._top[key] = value
        if chunk.get("error"):
            self._top.setdefault("error", chunk["error"])
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and choice.get("index", 0) == 0:
                self._add_choice(choice)

    @property
    def problem(self) -> str | None:
        """Why this is no whole reply. A reply is whole when it says so ([DONE]), or has both its finish reason and
        its usage; an error that the stream names itself needs no more."""
        if "error" in self._top or "error" in self._choice or self._choice.get("finish_reason") == "error":
            return None
        if self.broken:
            return "broken_chunk"
        whole = self.done or (self._choice.get("finish_reason") is not None and "usage" in self._top)
        return None if whole else "cut_stream"

    def reply(self) -> bytes:
        """The whole reply as JSON; ASCII, so that half a surrogate pair survives."""
        choices = [{"index": 0, "finish_reason": None, **self._choice, "message": self._message()}]
        value = {**self._top, "object": "chat.completion", "choices": choices if self._spoke else []}
        return json.dumps(value, separators=(",", ":"), ensure_ascii=True).encode()

    def _message(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": None, **self._extra}
        for name, pieces in self._texts.items():
            message[name] = "".join(pieces) or None
        if self._details:
            message["reasoning_details"] = [_joined(detail) for detail in self._details]
        if self._calls:
            message["tool_calls"] = [_joined_call(call) for _, call in sorted(self._calls.items())]
        elif message["content"] is None and "content" in self._texts:
            message["content"] = ""
        return message

    def _add_choice(self, choice: Mapping[str, Any]) -> None:
        self._spoke = True
        delta = choice.get("delta")
        for key, value in choice.items():
            if value is None or key in ("delta", "index", "logprobs"):
                continue
            if key in ID_LISTS and isinstance(value, list):
                self._choice.setdefault(key, []).extend(value)
            else:
                self._choice[key] = value
        if not isinstance(delta, dict):
            return
        for key, value in delta.items():
            if value is None:
                continue
            if key in SPOKEN:
                self._texts.setdefault(key, []).append(value if isinstance(value, str) else _parts(value))
            elif key == "reasoning_details":
                self._add_details(value)
            elif key == "tool_calls":
                self._add_calls(value)
            else:
                self._extra[key] = value

    def _add_details(self, details: Any) -> None:
        for detail in details if isinstance(details, list) else ():
            if not isinstance(detail, dict):
                continue
            mark = (detail.get("index"), detail.get("type"))
            held = next((d for d in self._details if mark[0] is not None and (d.get("index"), d["type"]) == mark), None)
            if held is None:
                held = {"type": detail.get("type")}
                self._details.append(held)
            for key, value in detail.items():
                if key in DETAIL_TEXTS and isinstance(value, str):
                    held.setdefault(key, []).append(value)
                elif value is not None or key not in held:
                    held[key] = value

    def _add_calls(self, calls: Any) -> None:
        for call in calls if isinstance(calls, list) else ():
            if not isinstance(call, dict):
                continue
            index = call.get("index")
            if type(index) is not int:  # without an index, an id starts a call and anything else continues the last
                last = max(self._calls, default=-1)
                index = last + 1 if call.get("id") or last < 0 else last
            held = self._calls.setdefault(index, {"id": None, "type": "function", "function": {"arguments": []}})
            for key, value in call.items():
                if key not in ("index", "function") and value and not held.get(key):
                    held[key] = value
            function = call.get("function")
            for key, value in function.items() if isinstance(function, dict) else ():
                if key == "arguments":
                    held["function"]["arguments"].append(value if isinstance(value, str) else "")
                elif value and not held["function"].get(key):
                    held["function"][key] = value


def _joined(detail: Mapping[str, Any]) -> dict[str, Any]:
    return {k: "".join(v) if k in DETAIL_TEXTS and isinstance(v, list) else v for k, v in detail.items()}


def _joined_call(call: Mapping[str, Any]) -> dict[str, Any]:
    return {**call, "function": {**call["function"], "arguments": "".join(call["function"]["arguments"])}}


def _parts(value: Any) -> str:
    parts = value if isinstance(value, list) else ()
    return "".join(str(part.get("text") or "") for part in parts if isinstance(part, dict))
