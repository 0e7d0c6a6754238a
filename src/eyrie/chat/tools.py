"""Tools for chat templates that know nothing of them: declarations, calls and results as plain text.

The rule, kept short because every prompt token is computed again for every answer:

- declarations stand at the end of the system message, after `TOOLS_HEADER`, one JSON object a line with the keys
  name, description, parameters;
- a call in the history is `<tool_call>{"name":...,"arguments":{...}}</tool_call>`, a line of its own after the content;
- a result is `<tool_response>...</tool_response>` in a user message; neighbouring results share one message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from eyrie.errors import InputError

TOOLS_HEADER = 'Tools (to call: <tool_call>{"name":...,"arguments":{...}}</tool_call>):'

Message = dict[str, Any]


@lru_cache
def mentions(template: str, word: str) -> bool:
    """Whether a Jinja template's code (not its comments) names `word`."""
    return re.search(rf"\b{word}\b", _without_comments(template)) is not None


@lru_cache
def knows_tool_role(template: str) -> bool:
    """Whether a Jinja template tests for messages of the role `tool`."""
    return re.search(r"""['"]tool['"]""", _without_comments(template)) is not None


def _without_comments(template: str) -> str:
    return re.sub(r"\{#.*?#\}", "", template, flags=re.DOTALL)


def parse_arguments(call: Mapping[str, Any]) -> Any:
    """A call's arguments as an object.

    OpenAI's wire form is a string of JSON; SGLang and vLLM parse it before rendering, as templates expect. A string
    that is no JSON object (the model's own mistake) is kept as it is.
    """
    arguments = call["function"].get("arguments") or "{}"
    if not isinstance(arguments, str):
        return arguments
    try:
        value = json.loads(arguments)
    except ValueError:
        return arguments
    return value if isinstance(value, dict) else arguments


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def declare(tools: Sequence[Mapping[str, Any]]) -> str:
    """The text that declares `tools` (OpenAI form). Raises InputError for a tool without a function name."""
    lines = [TOOLS_HEADER]
    for tool in tools:
        function = tool.get("function")
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise InputError(f'tool {_json(tool)[:80]} is not {{"type":"function","function":{{"name":...}}}}')
        kept = {key: function[key] for key in ("name", "description", "parameters") if function.get(key)}
        lines.append(_json(kept))
    return "\n".join(lines)


def call_text(call: Mapping[str, Any]) -> str:
    """One call of an assistant message as text."""
    return f"<tool_call>{_json({'name': call['function']['name'], 'arguments': parse_arguments(call)})}</tool_call>"


def with_declarations(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """`messages` with the declarations at the end of the system message, which is made when there is none."""
    text = declare(tools)
    if messages and messages[0]["role"] == "system":
        first = {**messages[0], "content": f"{messages[0]['content']}\n\n{text}".lstrip("\n")}
        return [first, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def with_text_calls(message: Message) -> Message:
    """An assistant message whose calls have become lines of its content."""
    lines = [message["content"]] if message["content"] else []
    lines += [call_text(call) for call in message["tool_calls"]]
    return {**{k: v for k, v in message.items() if k != "tool_calls"}, "content": "\n".join(lines)}


def with_text_results(messages: Sequence[Message]) -> list[Message]:
    """`messages` whose tool results have become user messages; neighbouring results share one."""
    found: list[Message] = []
    previous = None
    for message in messages:
        if message["role"] != "tool":
            found.append(message)
        else:
            text = f"<tool_response>{message['content']}</tool_response>"
            if previous == "tool":
                found[-1] = {"role": "user", "content": f"{found[-1]['content']}\n{text}"}
            else:
                found.append({"role": "user", "content": text})
        previous = message["role"]
    return found
