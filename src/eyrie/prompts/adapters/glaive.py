"""glaiveai/glaive-function-calling-v2: two strings a row, `system` with function declarations and `chat`.

    system  SYSTEM: You are a helpful assistant with access to the following functions. Use them if required -
            {"name": "f", "description": "...", "parameters": {...}}
            {"name": "g", ...}                                      JSON objects one after another, no commas
    chat    USER: ...\\n\\n\\nASSISTANT: <functioncall> {"name": "f", "arguments": '{"a": "b"}'} <|endoftext|>
            \\n\\n\\nFUNCTION RESPONSE: {...}\\n\\n\\nASSISTANT: ... <|endoftext|>

A role word starts a turn only where the grammar allows that turn: `USER:` in a log that somebody quotes is text.
`arguments` is JSON in single quotes, inside what is therefore no JSON; its apostrophes are plain.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from eyrie.files import fingerprint
from eyrie.prompts.rows import Adapter, BadRow, Drop, Message, PromptRow, text_column

END = "<|endoftext|>"
CALL = "<functioncall>"
LEAD_IN = re.compile(r",? with access to the following functions\. Use them if required\s*-?\s*$")
FUNCTION_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
# A user's or a tool's turn goes on until the assistant's; the assistant's until its end mark.
FIRST = re.compile(r"\s*(USER|ASSISTANT):[ \t]*")
TO_ASSISTANT = re.compile(r"\n{3,}(ASSISTANT):[ \t]*")
AFTER_END = re.compile(r"\s*(USER|ASSISTANT|FUNCTION RESPONSE):[ \t]*")
CALL_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*"(?P<name>[^"]+)"\s*(?:,\s*"arguments"\s*:\s*|\})')


def functions(system: str) -> tuple[str, list[dict[str, Any]]]:
    """`(system text without the declarations, OpenAI tools)`. Raises BadRow on declarations that are no JSON."""
    text = system.strip().removeprefix("SYSTEM:").strip()
    start = text.find("{")
    if start < 0:
        return text, []
    head, rest = text[:start], text[start:]
    declared: list[Any] = []
    decoder = json.JSONDecoder()
    while rest:
        try:
            value, end = decoder.raw_decode(rest)
        except ValueError as error:
            raise BadRow(f"column system: function {len(declared) + 1} is not JSON ({error})") from None
        declared.append(value)
        rest = rest[end:].lstrip(" \t\r\n,")
    head = LEAD_IN.sub(".", head.rstrip()) if LEAD_IN.search(head) else head.strip()
    return head, [tool(value) for value in declared]


def tool(declared: Any) -> dict[str, Any]:
    """A Glaive function declaration as an OpenAI tool. Raises BadRow when it has no usable name."""
    name = declared.get("name") if isinstance(declared, dict) else None
    if not isinstance(name, str) or not FUNCTION_NAME.fullmatch(name):
        raise BadRow(f"column system: a function's name is {name!r}; names are 1-64 letters, digits, _ and -")
    parameters = declared.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(parameters, dict):
        raise BadRow(f"column system: the parameters of {name} are no object")
    function = {"name": name, "description": str(declared.get("description") or ""), "parameters": parameters}
    return {"type": "function", "function": function}


def split(chat: str) -> list[tuple[str, str]]:
    """`chat` as `(role word, text)` in order. Raises BadRow when it does not start with a role word."""
    match = FIRST.match(chat)
    if match is None:
        raise BadRow("column chat does not start with USER: or ASSISTANT:")
    turns: list[tuple[str, str]] = []
    while match is not None:
        role, start = match[1], match.end()
        if role == "ASSISTANT":
            stop = chat.find(END, start)
            stop = len(chat) if stop < 0 else stop
            match = AFTER_END.match(chat, stop + len(END))
        else:
            match = TO_ASSISTANT.search(chat, start)
            stop = match.start() if match else len(chat)
        # An end mark behind a user's text belongs to the format, not to the text.
        turns.append((role, chat[start:stop].replace(END, "").strip()))
    return turns


def call(text: str) -> dict[str, Any] | None:
    """The function of one `<functioncall>` body as `{"name", "arguments": JSON string}`, None when unreadable."""
    head = CALL_HEAD.match(text)
    if head is None:
        return None
    rest = text[head.end() :].strip() if text[head.end() - 1] != "}" else "{}"
    quote = rest[:1]
    if quote in ("'", '"') and rest.rfind(quote) > 0:
        # Up to the last quote, so that apostrophes inside stay what they are.
        inner = rest[1 : rest.rfind(quote)]
        candidates = [inner, inner.replace("\\'", "'"), inner.replace('\\"', '"')]
    else:
        candidates = [rest]
    for candidate in candidates:
        try:
            value, _ = json.JSONDecoder().raw_decode(candidate.strip())
        except ValueError:
            continue
        if isinstance(value, dict):
            return {"name": head["name"], "arguments": json.dumps(value, ensure_ascii=False)}
    return None


def conversation(chat: str) -> list[Message]:
    """`chat` in OpenAI form: user, assistant (with `tool_calls`), tool (with `name`, None when no call was read)."""
    messages: list[Message] = []
    pending: list[dict[str, Any]] = []
    for role, text in split(chat):
        if role == "USER":
            messages.append({"role": "user", "content": text})
        elif role == "FUNCTION RESPONSE":
            answered = pending.pop(0) if pending else {"id": None, "function": {"name": None}}
            result = {"tool_call_id": answered["id"], "name": answered["function"]["name"]}
            messages.append({"role": "tool", **result, "content": text})
        else:
            said, *bodies = text.split(CALL)
            message: Message = {"role": "assistant", "content": said.strip()}
            read = [function for body in bodies if (function := call(body)) is not None]
            pending = [
                {"id": f"call_{len(messages)}_{i}", "type": "function", "function": f} for i, f in enumerate(read)
            ]
            if pending:
                message["tool_calls"] = list(pending)
            messages.append(message)
    return messages


def adapt(raw: Mapping[str, Any]) -> PromptRow | Drop:
    system, chat = text_column(raw, "system"), text_column(raw, "chat")
    text, tools = functions(system)
    messages = conversation(chat)
    first = next((i for i, message in enumerate(messages) if message["role"] == "user"), None)
    if first is None:
        return Drop("empty", "no user turn")
    turns: list[Message] = []
    for message in messages[first + 1 :]:
        if message["role"] == "user":
            turns.append(message)
        elif message["role"] == "tool":
            if message["name"] is None:  # what was called is not known: play back nothing from here on
                break
            turns.append({"role": "tool", "name": message["name"], "content": message["content"]})
    opening = [{"role": "system", "content": text}] if text else []
    return PromptRow(id=fingerprint(system, chat), messages=[*opening, messages[first]], tools=tools, turns=turns)


ADAPTER = Adapter(columns=(("system", "chat"),), adapt=adapt)
