"""One generated row: is it what a token row can be made of, and which texts must be encoded for it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eyrie.chat import answer_text, control_pattern, end_token_ids, render_messages, uncut
from eyrie.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SURROGATE = re.compile("[\ud800-\udfff]")
# A server without a reasoning parser leaves these in the content, where they are the tokens that were generated.
THINKING_MARKS = re.compile("</?think>")


class Dropped(Exception):
    """A conversation that no training row may come from; `reason` is its name in the manifest's counts."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True)
class Answer:
    """One answer with what its ids come from: the server's ids, else text to encode."""

    turn: int
    finish_reason: str
    prompt_text: str  # rendered; compared with the server's ids when there are some
    text: str  # of the answer, without its end token
    prompt_ids: list[int] | None
    generated_ids: list[int] | None


class Reader:
    """Turns generated rows into answers; one per tokenizer. `ends` are the ids that end a turn."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocab_size: int, thinking: bool | None) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.thinking = thinking
        self.control = control_pattern(tokenizer)
        self.ends = end_token_ids(tokenizer)

    def answers(self, row: Mapping[str, Any], where: str) -> list[Answer]:
        """The answers of a generated row.

        Raises Dropped for a conversation that cannot be trained on, InputError (naming `where`) for a row that no
        generate job writes.
        """
        messages, answers = row["messages"], row["answers"]
        by_message = {answer["message"]: answer for answer in answers}
        for number in by_message:
            if not 0 <= number < len(messages) or messages[number].get("role") != "assistant":
                raise InputError(f"{where}: answer names message {number}, which is no assistant message")
        for number, message in enumerate(messages):
            answer = by_message.get(number)
            shown_later = any(n > number and a.get("prompt_token_ids") is None for n, a in by_message.items())
            if answer is None or answer.get("token_ids") is None or shown_later:  # else its text is never encoded
                self._check_text(message, generated=answer is not None)
        self._check(json.dumps(row.get("tools") or [], ensure_ascii=False), "a tool declaration")
        return [self._answer(row, by_message[number], where) for number in sorted(by_message)]

    def _answer(self, row: Mapping[str, Any], answer: Mapping[str, Any], where: str) -> Answer:
        number = answer["message"]
        message, finish = row["messages"][number], answer["finish_reason"]
        prompt_ids = self._ids(answer.get("prompt_token_ids"), where)
        generated_ids = self._ids(answer.get("token_ids"), where)
        try:
            prompt = render_messages(
                self.tokenizer, row["messages"][:number], row.get("tools"), self.thinking, add_generation_prompt=True
            )
        except InputError as error:
            raise Dropped("template_refused", str(error)) from None
        text = ""
        if generated_ids is None:
            try:
                text = uncut(answer_text(self.tokenizer, message, self.thinking), finish)
            except InputError as error:
                raise Dropped("answer_not_rendered", str(error)) from None
        else:
            self._check_ids(generated_ids, message)
        return Answer(answer["turn"], finish, prompt, text, prompt_ids, generated_ids)

    def _ids(self, ids: list[int] | None, where: str) -> list[int] | None:
        if ids is None:
            return None
        if not ids or min(ids) < 0 or max(ids) >= self.vocab_size:
            raise InputError(f"{where}: the server's token ids are not within the target's {self.vocab_size};"
                             " was another model served?")  # fmt: skip
        return ids

    def _check_ids(self, ids: list[int], message: Mapping[str, Any]) -> None:
        """The server's generated ids must spell the answer and end at most once."""
        body = ids[:-1] if ids[-1] in self.ends else ids
        if not self.ends.isdisjoint(body):
            raise Dropped("end_token_inside", "the server's token ids go on after an end token")
        parts = [message.get("reasoning_content") or message.get("reasoning") or "", message.get("content") or ""]
        plain = not parts[0] and not message.get("tool_calls")
        for skip in (True, False):
            text = self.tokenizer.decode(body, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            text = text.rstrip("\ufffd").strip()
            wanted = [part.rstrip("\ufffd").strip() for part in parts]
            if text == wanted[1] if plain else all(part in text for part in wanted):
                return
        raise Dropped("ids_differ_from_text", "the server's token ids do not decode to the answer's text")

    def _check_text(self, message: Mapping[str, Any], *, generated: bool) -> None:
        for text in _texts(message):
            self._check(THINKING_MARKS.sub("", text) if generated else text, f"a message of the {message['role']}")

    def _check(self, text: str, place: str) -> None:
        """No text may become a control token."""
        found = self.control.search(text)
        if found:
            raise Dropped("special_token_in_text", f"{place} contains the text {found.group()!r}")
        if SURROGATE.search(text):
            raise Dropped("not_unicode", f"{place} contains half a surrogate pair")


def _texts(message: Mapping[str, Any]) -> Iterator[str]:
    """Every string of a message that a template may write."""
    for key in ("content", "reasoning_content", "reasoning", "name"):
        if isinstance(message.get(key), str):
            yield message[key]
    for call in message.get("tool_calls") or []:
        yield json.dumps(call, ensure_ascii=False)
        arguments = call.get("function", {}).get("arguments")
        if isinstance(arguments, str):
            yield arguments
