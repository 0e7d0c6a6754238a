"""Token ids of an answer that came as text: what the target generated after the prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from eyrie.chat.render import chat_template, encode, render_messages
from eyrie.chat.special import end_of_turn_id
from eyrie.chat.tools import mentions, with_text_calls
from eyrie.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

REPLACEMENT = "\ufffd"


def answer_text(tokenizer: PreTrainedTokenizerBase, message: Mapping[str, Any], thinking: bool | None = None) -> str:
    """The text that the target generated to give `message`, without the end token.

    Content alone is taken verbatim (templates may trim it, the target did not). Reasoning and tool calls were cut out
    of the text by the server; they are put back as the template writes them in a last turn. Raises InputError when
    the template does not.
    """
    content = message.get("content") or ""
    reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    calls = message.get("tool_calls") or []
    if not reasoning:
        if not calls:
            return content
        if not mentions(chat_template(tokenizer), "tool_calls"):
            return with_text_calls({**message, "content": content})["content"]
    history = [{"role": "user", "content": "?"}]
    prompt = render_messages(tokenizer, history, None, thinking, add_generation_prompt=True)
    whole = render_messages(tokenizer, [*history, message], None, thinking, add_generation_prompt=False)
    end = tokenizer.convert_ids_to_tokens(end_of_turn_id(tokenizer))
    text = whole[len(prompt) :].rpartition(end)[0]
    if not whole.startswith(prompt) or reasoning.strip() not in text or content.strip() not in text:
        raise InputError(
            "the chat template does not write this answer's reasoning and tool calls where they were generated;"
            " only a server that returns token ids can give them"
        )
    return text


def answer_ids(
    tokenizer: PreTrainedTokenizerBase,
    message: Mapping[str, Any],
    thinking: bool | None = None,
    finish_reason: str | None = "stop",
) -> list[int]:
    """Generated ids of an assistant message for which the server gave none.

    Generation starts on a token boundary, so the text is encoded on its own. The end token closes it unless
    `finish_reason` is `length`; then a trailing replacement character (a character cut in half) is dropped.
    """
    text = answer_text(tokenizer, message, thinking)
    return close_answer(tokenizer, encode(tokenizer, uncut(text, finish_reason)), finish_reason)


def uncut(text: str, finish_reason: str | None) -> str:
    """`text` without the replacement characters that a server writes for a last character cut in half."""
    return text.rstrip(REPLACEMENT) if finish_reason == "length" else text


def close_answer(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], finish_reason: str | None) -> list[int]:
    """`ids` and the end token, which the target generated unless it was cut off by `length`."""
    return list(ids) if finish_reason == "length" else [*ids, end_of_turn_id(tokenizer)]
