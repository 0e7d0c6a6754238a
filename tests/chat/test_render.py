"""Prompts are what the template writes; what it cannot write is text by one rule."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyrie.chat import (
    BatchEncoder,
    answer_ids,
    control_pattern,
    end_of_turn_id,
    end_token_ids,
    render_messages,
    render_prompt,
)
from eyrie.errors import InputError
from tests.chat.small import (
    CHATML,
    DEFAULT_SYSTEM,
    SPECIAL,
    THINKING,
    TOOLS,
    WEATHER,
    assistant,
    call,
    small_tokenizer,
    user,
)

CALLED = [
    user("Weather?"),
    {"role": "assistant", "content": None, "tool_calls": [call("get_weather", '{"city": "Paris"}')]},
    {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    {"role": "tool", "tool_call_id": "call_2", "content": "warm"},
]


def text_of(template, messages, tools=None, thinking=None):
    return render_messages(small_tokenizer(template), messages, tools, thinking, add_generation_prompt=True)


def test_prompt_is_the_templates_and_ends_where_generation_starts():
    tokenizer = small_tokenizer()
    ids = render_prompt(tokenizer, [user("Hi 你好 🙂")])
    assert tokenizer.decode(ids) == "<|im_start|>user\nHi 你好 🙂<|im_end|>\n<|im_start|>assistant\n"
    assert ids.count(1) == 2 and ids.count(2) == 1


def test_templates_own_system_message_appears_once():
    assert text_of(DEFAULT_SYSTEM, [user("x")]).count("system\nBe brief.") == 1
    given_one = [{"role": "system", "content": "Mine."}, user("x")]
    assert "Be brief." not in text_of(DEFAULT_SYSTEM, given_one)


def test_template_with_tools_gets_them_and_calls_as_objects():
    text = text_of(TOOLS, CALLED, [WEATHER])
    declared = text.split("<|im_end|>")[0].removeprefix("<|im_start|>tool_declare\n")
    assert json.loads(declared) == [WEATHER]
    assert '<tool>get_weather{"city": "Paris"}</tool><|im_end|>' in text
    assert "tool\n## Return of call_1\nsunny<|im_end|>" in text


def test_template_without_tools_gets_them_as_text():
    text = text_of(CHATML, CALLED, [WEATHER])
    assert text == (
        '<|im_start|>system\nTools (to call: <tool_call>{"name":...,"arguments":{...}}</tool_call>):\n'
        '{"name":"get_weather","description":"Weather of a city.","parameters":{"type":"object"}}<|im_end|>\n'
        "<|im_start|>user\nWeather?<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>{"name":"get_weather","arguments":{"city":"Paris"}}</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>sunny</tool_response>\n<tool_response>warm</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_declarations_follow_a_given_system_message():
    text = text_of(CHATML, [{"role": "system", "content": "Be kind."}, user("x")], [WEATHER])
    assert text.startswith("<|im_start|>system\nBe kind.\n\nTools (to call:")
    assert text.count("<|im_start|>system") == 1


def test_arguments_that_are_no_object_stay_text():
    messages = [user("x"), {"role": "assistant", "content": "", "tool_calls": [call("f", "{broken")]}]
    assert '"arguments":"{broken"' in text_of(CHATML, messages)


def test_reasoning_switch_and_old_thinking():
    messages = [user("a"), assistant("b", reasoning="deep"), user("c")]
    assert text_of(THINKING, messages).endswith("<think></think>b<|im_end|>\n<|im_start|>user\nc<|im_end|>\n"
                                                "<|im_start|>assistant\n<think>")  # fmt: skip
    assert text_of(THINKING, messages, thinking=False).endswith("<|im_start|>assistant\n<think></think>")


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([{"role": "robot", "content": "x"}], r"messages\[0\]: role 'robot'"),
        ([{"role": "user", "content": [{"type": "image"}]}], r"messages\[0\]: content must be a string, not list"),
        ([user("x"), {"role": "assistant", "tool_calls": [{"id": "1"}]}], r"messages\[1\]: a tool call must have"),
    ],
)
def test_messages_that_cannot_be_right_are_named(messages, says):
    with pytest.raises(InputError, match=says):
        render_prompt(small_tokenizer(), messages)


def test_template_that_refuses_is_reported_and_a_missing_one_too():
    refusing = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(InputError, match="refuses these messages: roles must alternate"):
        render_prompt(small_tokenizer(refusing), [user("x")])
    with pytest.raises(InputError, match="has no chat template"):
        render_prompt(small_tokenizer(None), [user("x")])


def test_end_tokens_come_from_template_eos_and_generation_config(tmp_path):
    tokenizer = small_tokenizer()
    assert end_of_turn_id(tokenizer) == SPECIAL.index("<|im_end|>")
    tokenizer.eos_token = "<|endoftext|>"
    assert end_token_ids(tokenizer) == {0, 2}
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 7]}')
    tokenizer.name_or_path = str(tmp_path)
    assert end_token_ids(tokenizer) == {0, 2, 7}


def test_template_that_ends_turns_without_a_special_token_falls_back_on_eos():
    plain = small_tokenizer("{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}")
    assert end_of_turn_id(plain) == plain.eos_token_id == 2


def test_control_pattern_finds_every_special_token_and_nothing_else():
    pattern = control_pattern(small_tokenizer())
    assert all(pattern.search(f"a{text}b").group() == text for text in SPECIAL)
    assert pattern.search("<|im_star|> <b> ||") is None


def test_answer_is_taken_verbatim_and_closed_unless_it_was_cut():
    tokenizer = small_tokenizer()
    text = "  two spaces, 你好 🙂 \n"
    assert tokenizer.decode(answer_ids(tokenizer, assistant(text))) == text + "<|im_end|>"
    cut = answer_ids(tokenizer, assistant(text + "\ufffd"), finish_reason="length")
    assert tokenizer.decode(cut) == text


def test_reasoning_and_calls_go_back_to_where_they_were_generated():
    tokenizer = small_tokenizer(THINKING)
    ids = answer_ids(tokenizer, assistant("yes", reasoning="deep"))
    assert tokenizer.decode(ids) == "deep</think>yes<|im_end|>"
    called = {"role": "assistant", "content": "Look: ", "tool_calls": [call("get_weather", '{"city": "Paris"}')]}
    tokenizer = small_tokenizer(TOOLS)
    assert tokenizer.decode(answer_ids(tokenizer, called)) == (
        'Look: <tool>get_weather{"city": "Paris"}</tool><|im_end|>'
    )
    assert "</tool_call><|im_end|>" in small_tokenizer().decode(answer_ids(small_tokenizer(), called))


def test_reasoning_that_the_template_drops_is_an_error():
    with pytest.raises(InputError, match="does not write this answer's reasoning"):
        answer_ids(small_tokenizer(), assistant("yes", reasoning="deep"))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.one_of(st.sampled_from(SPECIAL), st.text(max_size=12)), max_size=6).map("".join)))
def test_batch_encoder_gives_the_ids_of_plain_encoding(texts):
    tokenizer = small_tokenizer()
    encoder = BatchEncoder(tokenizer)
    assert encoder.pieces
    assert encoder.encode(texts) == [tokenizer.encode(text, add_special_tokens=False) for text in texts]


def test_tokenizers_that_look_at_a_pieces_place_are_encoded_whole():
    from tokenizers import AddedToken, pre_tokenizers

    tokenizer = small_tokenizer()
    tokenizer.add_tokens([AddedToken("<eats>", lstrip=True)])
    assert not BatchEncoder(tokenizer).pieces
    tokenizer = small_tokenizer()
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    assert not BatchEncoder(tokenizer).pieces
    text = "a b<|im_end|>a b"
    assert BatchEncoder(tokenizer).encode([text]) == [tokenizer.encode(text, add_special_tokens=False)]
