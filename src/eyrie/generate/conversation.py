"""A conversation turn by turn: what the target said goes into the history, what comes next comes from the source row.

The same code drives buying and the writing of the output, so the two cannot disagree about what was asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from eyrie.gateway.reply import Verdict, assistant_message
from eyrie.vault.records import Answer

Message = dict[str, Any]


@dataclass
class Conversation:
    """One prompt row on its way. Ask while `ended` is None; then `ended` says why it ended.

    `turns` of the row are later user turns and recorded tool results. A tool call is answered with the first unused
    result recorded under the function's name; a call without one ends the conversation there, as data.
    """

    messages: list[Message]
    tools: Sequence[Any] | None
    pending: list[Message]
    user_turns: int  # user turns that may still be added
    turn: int = 0  # answers so far
    answered_at: list[int] = field(default_factory=list)  # message index of each answer
    ended: str | None = None

    @classmethod
    def start(cls, row: dict[str, Any], user_turns: int) -> Conversation:
        """The conversation of a prompt row; at most `user_turns` user turns are answered."""
        return cls(list(row["messages"]), row.get("tools") or None, list(row.get("turns") or ()), user_turns - 1)

    def answer(self, message: Message, *, cut: bool) -> None:
        """Take the target's answer (an assistant message); `cut` when it stopped at max_tokens."""
        self.answered_at.append(len(self.messages))
        self.messages.append(message)
        self.turn += 1
        if cut:
            self.ended = "length"  # what would follow half an answer is no conversation
        elif message.get("tool_calls"):
            self._play_tools(message["tool_calls"])
        else:
            self._next_user_turn()

    def abandon(self, reason: str) -> None:
        """The next answer will not come; what is answered stays, a question without an answer goes."""
        self.ended = reason
        keep = self.answered_at[-1] + 1 if self.answered_at else 0
        del self.messages[keep:]

    def _play_tools(self, calls: Sequence[Any]) -> None:
        rest, results = list(self.pending), []
        for call in calls:
            name = _function_name(call)
            found = next((m for m in rest if m["role"] == "tool" and m.get("name") == name), None)
            if found is None:
                self.ended = "tool_result_missing"
                return
            rest = [m for m in rest if m is not found]
            results.append(
                {"role": "tool", "tool_call_id": _call_id(call), "name": name, "content": found.get("content", "")}
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


def _function_name(call: Any) -> str | None:
    function = call.get("function") if isinstance(call, dict) else None
    return function.get("name") if isinstance(function, dict) else None


def _call_id(call: Any) -> Any:
    return call.get("id") if isinstance(call, dict) else None


def take(conversation: Conversation, answer: Answer, *, drop_cut: bool) -> int:
    """Continue `conversation` with a stored answer; returns its output tokens, 0 when it is no data.

    Raises ValueError when the stored reply does not hold an assistant message.
    """
    if not answer.is_data or (drop_cut and answer.verdict == Verdict.LENGTH.value):
        conversation.abandon(answer.verdict)
        return 0
    conversation.answer(assistant_message(answer.reply), cut=answer.verdict == Verdict.LENGTH.value)
    return answer.usage.completion_tokens
