"""A user's own data: rows with OpenAI `messages` or ShareGPT `conversations`, and optionally `id` and `tools`.

Only the user's side is kept (and recorded tool results, matched to the call they answer): the target itself says
what the assistant says. Serves JSON Lines and Parquet alike.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from eyrie.files import fingerprint
from eyrie.prompts.rows import Adapter, BadRow, Drop, Message, PromptRow

ROLES = {
    "system": "system", "developer": "system",
    "user": "user", "human": "user",
    "assistant": "assistant", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant", "bard": "assistant",
    "ai": "assistant", "model": "assistant", "function_call": "assistant",
    "tool": "tool", "function": "tool", "observation": "tool",
}  # fmt: skip


def content(value: Any) -> str | None:
    """A message's text: a string, or OpenAI's list of text parts; None when it holds something else (an image)."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in value):
        return "".join(str(part.get("text") or "") for part in value)
    return None


def turn(message: Any) -> tuple[str, Any]:
    """`(role in OpenAI's words, content)` of a message in either shape. Raises BadRow on an unknown role."""
    if not isinstance(message, Mapping):
        raise BadRow(f"a message is {type(message).__name__}, not an object")
    said = message.get("role") if message.get("role") is not None else message.get("from")
    if not isinstance(said, str) or said.lower() not in ROLES:
        raise BadRow(f"a message's role is {said!r}; known are {', '.join(sorted(ROLES))}")
    return ROLES[said.lower()], message["content"] if "content" in message else message.get("value")


def calls(message: Mapping[str, Any], said: str | None) -> list[tuple[str, str]]:
    """`(call id, function name)` of what an assistant message calls: OpenAI's `tool_calls`, or the JSON text of a
    ShareGPT `function_call` turn. Raises BadRow on calls without a name."""
    found = []
    for item in message.get("tool_calls") or []:
        function = item.get("function") if isinstance(item, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise BadRow("a tool call has no function name")
        found.append((str(item.get("id")), function["name"]))
    if message.get("from") == "function_call":
        try:
            found.append(("", json.loads(said or "")["name"]))
        except (ValueError, KeyError, TypeError):
            raise BadRow("a function_call turn is not JSON with a name") from None
    return found


def tools(raw: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The row's `tools`, given as a list or as its JSON text. Raises BadRow when they are no OpenAI tools."""
    value = raw.get("tools")
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else None
        except ValueError as error:
            raise BadRow(f"column tools is not JSON ({error})") from None
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadRow("column tools is no list")
    for item in value:
        if not (isinstance(item, dict) and isinstance(item.get("function"), dict) and item["function"].get("name")):
            raise BadRow('a tool is not {"type": "function", "function": {"name", ...}}')
    return value


def adapt(raw: Mapping[str, Any]) -> PromptRow | Drop:
    given = raw.get("messages") if raw.get("messages") is not None else raw.get("conversations")
    if not isinstance(given, list):
        raise BadRow("neither messages nor conversations is a list")
    system: list[str] = []
    user: list[Message] = []
    names: dict[str, str] = {}
    last_called: str | None = None
    for message in given:
        role, value = turn(message)
        text = content(value)
        if text is None and role != "assistant":
            return Drop("not text", f"a {role} message holds more than text")
        if role == "system":
            if user:
                return Drop("late system message")
            system.append(text or "")
        elif role == "user":
            user.append({"role": "user", "content": text})
        elif role == "assistant":
            for identity, name in calls(message, said=text):
                names[identity] = last_called = name
        elif user:
            name = message.get("name") or names.get(str(message.get("tool_call_id"))) or last_called
            if name is None:  # nothing to match it to: play back nothing from here on
                break
            user.append({"role": "tool", "name": name, "content": text})
    if not user:
        return Drop("empty", "no user turn")
    opening = [{"role": "system", "content": "\n\n".join(system)}] if any(system) else []
    own = raw.get("id")
    own_id = str(own) if isinstance(own, str | int) and str(own) else fingerprint(given, raw.get("tools"))
    return PromptRow(id=own_id, messages=[*opening, user[0]], tools=tools(raw), turns=user[1:])


ADAPTER = Adapter(columns=(("messages",), ("conversations",)), adapt=adapt)
