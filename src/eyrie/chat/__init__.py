"""Chat rendering: from OpenAI messages to the token ids that a server feeds its model, and back to answers.

Both sides use the same code, the embedded server when it builds a prompt and the tokenize stage when it rebuilds one,
so what is trained on is what was served. Nothing here knows a model family: the tokenizer's own chat template says
how a turn looks, and its special tokens say where one ends.
"""

from eyrie.chat.answers import answer_ids, answer_text, close_answer, uncut
from eyrie.chat.encode import BatchEncoder
from eyrie.chat.render import render_messages, render_prompt
from eyrie.chat.special import control_pattern, end_of_turn_id, end_token_ids, special_token_ids

__all__ = [
    "BatchEncoder",
    "answer_ids",
    "answer_text",
    "close_answer",
    "control_pattern",
    "end_of_turn_id",
    "end_token_ids",
    "render_messages",
    "render_prompt",
    "special_token_ids",
    "uncut",
]
