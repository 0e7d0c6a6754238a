"""Rendering with the tokenizer's own chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from eyrie.chat.tools import (
    Message,
    knows_tool_role,
    mentions,
    parse_arguments,
    with_declarations,
    with_text_calls,
    with_text_results,
)
from eyrie.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def render_prompt(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
    thinking: bool | None = None,
) -> list[int]:
    """Token ids of the prompt that ends exactly where the assistant's generation starts.

    `messages` and `tools` are in OpenAI form; `thinking` is the reasoning switch, None for targets without one.
    Raises InputError when the tokenizer has no chat template or its template refuses the messages.
    """
    return encode(tokenizer, render_messages(tokenizer, messages, tools, thinking, add_generation_prompt=True))


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Ids of rendered text; nothing is added, since the template wrote every special token itself."""
    return tokenizer.encode(text, add_special_tokens=False)


def render_messages(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
    thinking: bool | None = None,
    *,
    add_generation_prompt: bool,
) -> str:
    """The text that the template makes of `messages`; errors as `render_prompt`.

    Both spellings of the reasoning switch in use (`thinking`, `enable_thinking`) are set; a template reads its own.
    """
    from jinja2.exceptions import TemplateError

    template = chat_template(tokenizer, tools)
    normal = [_normalised(message, number) for number, message in enumerate(messages)]
    if not mentions(template, "tool_calls"):
        normal = [with_text_calls(message) if message.get("tool_calls") else message for message in normal]
    if not knows_tool_role(template):
        normal = with_text_results(normal)
    if tools and not mentions(template, "tools"):
        normal, tools = with_declarations(normal, tools), None
    switch = {} if thinking is None else {"thinking": thinking, "enable_thinking": thinking}
    try:
        return tokenizer.apply_chat_template(
            normal, tools=list(tools) if tools else None, chat_template=template, tokenize=False,
            add_generation_prompt=add_generation_prompt, **switch,
        )  # fmt: skip
    except (TemplateError, TypeError, KeyError, ValueError) as error:
        raise InputError(f"the chat template of {tokenizer.name_or_path} refuses these messages: {error}") from None


def chat_template(tokenizer: PreTrainedTokenizerBase, tools: Sequence[Mapping[str, Any]] | None = None) -> str:
    """Source of the template that is used with or without `tools`. Raises InputError when there is none."""
    try:
        return tokenizer.get_chat_template(tools=list(tools) if tools else None)
    except ValueError:
        raise InputError(
            f"{tokenizer.name_or_path}: the tokenizer has no chat template; add chat_template.jinja to the folder"
        ) from None


def _normalised(message: Mapping[str, Any], number: int) -> Message:
    """One message as the engines hand it to a template.

    Content None becomes "", call arguments become objects (SGLang and vLLM do both), and OpenRouter's `reasoning`
    gets the name that templates read, `reasoning_content`.
    """
    role, content = message.get("role"), message.get("content")
    if role not in ("system", "user", "assistant", "tool"):
        raise InputError(f"messages[{number}]: role {role!r} must be system, user, assistant or tool")
    if content is not None and not isinstance(content, str):
        raise InputError(f"messages[{number}]: content must be a string, not {type(content).__name__}")
    normal: Message = {"role": role, "content": content or ""}
    for key in ("name", "tool_call_id"):
        if message.get(key) is not None:
            normal[key] = message[key]
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if reasoning:
        normal["reasoning_content"] = reasoning
    if message.get("tool_calls"):
        normal["tool_calls"] = [_with_object_arguments(call, number) for call in message["tool_calls"]]
    return normal


def _with_object_arguments(call: Mapping[str, Any], number: int) -> dict[str, Any]:
    if not isinstance(call.get("function"), Mapping) or not isinstance(call["function"].get("name"), str):
        raise InputError(f"messages[{number}]: a tool call must have a function with a name")
    return {**call, "function": {**call["function"], "arguments": parse_arguments(call)}}
