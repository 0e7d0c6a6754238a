"""A conversation turn by turn: what the target said goes into the history, what comes next comes from the source row.

The same code drives buying and the writing of the output, so the two cannot disagree about what was asked.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from eyrie.gateway.reply import Verdict, assistant_message, token_ids
from eyrie.gateway.request import Request, RequestBuilder
from eyrie.vault.records import Answer

Message = dict[str, Any]
HALF_CHARACTER = "\ufffd"  # how a server shows a character whose bytes are not all there


@dataclass
class Conversation:
    """One prompt row on its way. Ask for `request` while `ended` is None; then `ended` says why it ended.

    `turns` of the row are later user turns and recorded tool results. A tool call is answered with the first unused
    result recorded under the function's name; a call without one ends the conversation there, as data.

    An answer cut at max_tokens ends it too, unless `max_pieces` lets the answer go on: then the next request takes
    the token ids of prompt and answer, so that the answer is what one longer request would have been answered. Each
    piece is an answer of its own in the vault, under the next `turn` number.
    """

    messages: list[Message]
    tools: Sequence[Any] | None
    pending: list[Message]
    user_turns: int  # user turns that may still be added
    max_pieces: int = 1
    turn: int = 0  # answers so far, pieces counted one by one
    answered_at: list[int] = field(default_factory=list)  # message index of each answer
    pieces: int = 0  # of the answer that goes on
    so_far: tuple[list[int], list[int]] | None = None  # prompt and generated ids of the answer that goes on
    ended: str | None = None

    @classmethod
    def start(cls, row: dict[str, Any], user_turns: int, max_pieces: int = 1) -> Conversation:
        """The conversation of a prompt row; at most `user_turns` user turns are answered."""
        return cls(
            list(row["messages"]), row.get("tools") or None, list(row.get("turns") or ()), user_turns - 1, max_pieces
        )

    def request(self, builder: RequestBuilder, repetition: int) -> Request:
        """What to ask next."""
        if self.so_far is not None:
            return builder.build_continuation(*self.so_far, repetition)
        return builder.build(self.messages, self.tools, repetition)

    def answer(self, message: Message, *, cut: bool, ids: tuple[list[int], list[int]] | None = None) -> None:
        """Take the target's answer (an assistant message); `cut` when it stopped at max_tokens. `ids`: prompt and
        generated token ids, when the server gave them."""
        self.turn += 1
        self.pieces += 1
        if self.so_far is None:
            self.answered_at.append(len(self.messages))
            self.messages.append(message)
        else:
            said = self.messages[-1]
            self.messages[-1] = message = {**said, "content": said["content"] + (message["content"] or "")}
            ids = (self.so_far[0], self.so_far[1] + ids[1]) if ids else None
        self.so_far = ids if cut and self.pieces < self.max_pieces and self._can_go_on(message) else None
        if self.so_far is not None:
            return
        self.pieces = 0
        if cut:
            self.ended = "length"  # what would follow half an answer is no conversation
        elif message.get("tool_calls"):
            self._play_tools(message["tool_calls"])
        else:
            self._next_user_turn()

    def _can_go_on(self, message: Message) -> bool:
        """Whether the rest of a cut answer is plain text: a cut inside reasoning or near a tool call needs a parser
        that saw the beginning, and half a character cannot be joined as text."""
        content = message.get("content") or ""
        return bool(content.strip()) and not content.endswith(HALF_CHARACTER) and not self.tools

    def abandon(self, reason: str) -> None:
        """The next answer will not come; what is answered stays, a question without an answer goes. An answer whose
        next piece does not come stays cut."""
        if self.so_far is not None:
            self.so_far, self.ended = None, "length" if reason != "open" else reason
            return
        self.ended = reason
        keep = self.answered_at[-1] + 1 if self.answered_at else 0
        del self.messages[keep:]

    def _play_tools(self, calls: Sequence[Any]) -> None:
        rest, results = list(self.pending), []
        for call in calls:
            name = _readable(call)
            if name is None:  # the target's own mistake: kept as it is, but no host takes it in a history
                self.ended = "tool_call_malformed"
                return
            found = next((m for m in rest if m["role"] == "tool" and m.get("name") == name), None)
            if found is None:
                self.ended = "tool_result_missing"
                return
            rest = [m for m in rest if m is not found]
            results.append(
                {"role": "tool", "tool_call_id": call["id"], "name": name, "content": found.get("content", "")}
            )
        self.pending = rest
        self.messages += results

    def _next_user_turn(self) -> None:
        while self.pending and self.pending[0]["role"] != "user":
            self.pending.pop(0)  # results of calls that the target did not make
        if not self.pending:
            self.ended = "finished"
        elif self.user_turns <= 0:
            self.ended = "turn_limit"
        else:
            self.user_turns -= 1
            self.messages.append({"role": "user", "content": self.pending.pop(0)["content"]})


def _readable(call: Any) -> str | None:
    """The function's name of a call that has an id and a JSON object of arguments, else None."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(call.get("id"), str):
        return None
    try:
        arguments = json.loads(function.get("arguments") or "{}")
    except (TypeError, ValueError):
        return None
    return function.get("name") if isinstance(arguments, dict) and isinstance(function.get("name"), str) else None


def take(conversation: Conversation, answer: Answer, *, drop_cut: bool) -> int:
    """Continue `conversation` with a stored answer; returns its output tokens, 0 when it is no data.

    Raises ValueError when the stored reply does not hold an assistant message.
    """
    cut = answer.verdict == Verdict.LENGTH.value
    if not answer.is_data or (drop_cut and cut):
        conversation.abandon(answer.verdict)
        return 0
    reply = answer.reply
    ids = token_ids(reply)
    prompt, generated = ids.get("prompt_token_ids"), ids.get("token_ids")
    if conversation.so_far is not None and generated is None:
        conversation.abandon("length")  # a piece whose tokens are unknown cannot be joined
        return 0
    whole = (prompt or [], generated) if generated and (prompt or conversation.so_far) else None
    conversation.answer(assistant_message(reply), cut=cut, ids=whole)
    return answer.usage.completion_tokens
