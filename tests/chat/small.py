"""A small byte-level BPE tokenizer and chat templates in the shapes of real ones."""

from functools import lru_cache

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Writes a system message of its own when there is none.
DEFAULT_SYSTEM = "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nBe brief.<|im_end|>\n{% endif %}" + CHATML
# Declares tools itself and knows calls and results.
TOOLS = (
    "{% if tools %}<|im_start|>tool_declare\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['role'] == 'tool' %}## Return of {{ message['tool_call_id'] }}\n{% endif %}"
    "{{ message['content'] }}"
    "{% for call in message['tool_calls'] or [] %}<tool>{{ call['function']['name'] }}"
    "{{ call['function']['arguments'] | tojson }}</tool>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Opens <think> in the prompt (or closes it at once), and empties the thinking of all turns but the last.
THINKING = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['role'] == 'assistant' %}<think>"
    "{% if loop.last %}{{ message['reasoning_content'] or '' }}{% endif %}</think>{% endif %}"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>"
    "{% if thinking is false %}</think>{% endif %}{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")
TEXT = """system user assistant tool def add(a, b): return a + b  # a comment
The quick brown fox jumps over the lazy dog. 你好，世界 こんにちは 🙂🙃 naïve café
{"name": "get_weather", "arguments": {"city": "Paris"}} <tool_call></tool_call>
"""


@lru_cache(maxsize=1)
def _trained() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in SPECIAL],
    )  # fmt: skip
    tokenizer.train_from_iterator([TEXT] * 4, trainer)
    return tokenizer.to_str()


def small_tokenizer(template: str | None = CHATML) -> PreTrainedTokenizerFast:
    """About 400 tokens; ids 0 to 4 are `SPECIAL`."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_trained()), eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.chat_template = template
    return tokenizer


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def assistant(text: str, **more) -> dict:
    return {"role": "assistant", "content": text, **more}


def call(name: str, arguments: str) -> dict:
    """A tool call as OpenAI's wire form has it: the arguments are a string."""
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}


WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Weather of a city.", "parameters": {"type": "object"}},
}
