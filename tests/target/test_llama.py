"""The CPU engine against transformers, and its promise that a row never sees its neighbours."""

from __future__ import annotations

import copy

import pytest
import torch

from eyrie.errors import InputError
from eyrie.target.llama import EXTENT, Llama, PackedLinear
from eyrie.target.support import check_supported

TINY = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 160,
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 300,
    "rms_norm_eps": 1e-5, "max_position_embeddings": 1024, "rope_theta": 10000.0, "tie_word_embeddings": True,
    "hidden_act": "silu",
}  # fmt: skip
LLAMA3_ROPE = {
    "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def reference(**changes):
    """A random transformers model and the same weights in our engine."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = {**TINY, **changes}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**copy.deepcopy(config))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2 + (1.0 if parameter.dim() == 1 else 0.0))
    return model, Llama(config, dict(model.state_dict()))


@pytest.fixture(scope="module")
def pair():
    return reference()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": False},
        {"num_key_value_heads": 8},
        {"rope_parameters": {**LLAMA3_ROPE, "rope_theta": 10000.0}},
        {"rope_scaling": LLAMA3_ROPE},
    ],
    ids=["grouped", "untied", "one-to-one", "llama3-rope", "llama3-rope-old-spelling"],
)
def test_logits_and_aux_states_equal_transformers(changes):
    model, llama = reference(**changes)
    ids = torch.randint(0, 300, (3, 90))
    with torch.no_grad():
        expected = model(ids, output_hidden_states=True)
    final, aux = llama.forward(ids, torch.zeros(3, dtype=torch.int64), llama.new_cache(3, 90), (1, 2, 3))
    torch.testing.assert_close(llama.logits(final), expected.logits, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(final, expected.hidden_states[-1], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(aux, torch.cat(expected.hidden_states[1:4], -1), atol=1e-4, rtol=1e-4)


def test_aux_layer_zero_is_the_embedding(pair):
    _, llama = pair
    ids = torch.tensor([[5, 6, 7]])
    _, aux = llama.forward(ids, torch.zeros(1, dtype=torch.int64), llama.new_cache(1, 8), (0,))
    assert torch.equal(aux, llama.embed_tokens[ids])


def test_blocks_on_rows_of_different_lengths_equal_one_full_pass(pair):
    """Padded batched prefill, then blocks of several tokens, then a rejected block overwritten."""
    model, llama = pair
    texts = [torch.randint(0, 300, (n,)) for n in (40, 7, 71)]
    starts = [20, 3, 60]
    cache = llama.new_cache(3, 80)
    prompt = torch.zeros(3, 60, dtype=torch.int64)
    for row, (text, start) in enumerate(zip(texts, starts, strict=True)):
        prompt[row, :start] = text[:start]
    lengths = torch.zeros(3, dtype=torch.int64)
    llama.forward(prompt, lengths, cache)
    lengths = torch.tensor(starts)
    llama.forward(torch.randint(0, 300, (3, 5)), lengths, cache)  # a rejected guess: lengths stay
    final, _ = llama.forward(torch.stack([t[s : s + 4] for t, s in zip(texts, starts, strict=True)]), lengths, cache)
    for row, (text, start) in enumerate(zip(texts, starts, strict=True)):
        with torch.no_grad():
            expected = model(text[None, : start + 4]).logits[0, start:]
        torch.testing.assert_close(llama.logits(final[row]), expected, atol=1e-4, rtol=1e-4)


def test_greedy_text_equals_transformers(pair):
    model, llama = pair
    prompt = torch.randint(0, 300, (1, 11))
    expected = model.generate(prompt, do_sample=False, max_new_tokens=40, eos_token_id=None, pad_token_id=0)[0, 11:]
    cache, found = llama.new_cache(1, 64), []
    final, _ = llama.forward(prompt, torch.zeros(1, dtype=torch.int64), cache)
    for step in range(40):
        found.append(int(llama.logits(final[:, -1]).argmax()))
        final, _ = llama.forward(torch.tensor([[found[-1]]]), torch.tensor([11 + step]), cache)
    assert found == expected.tolist()


@pytest.mark.parametrize("count", [1, 4])
def test_a_row_is_bitwise_the_same_in_any_slot_with_any_neighbours(pair, count):
    """Decode of one row among long and short strangers, in every slot, against itself among empty rows."""
    _, llama = pair
    text = torch.randint(0, 300, (1, 50))
    block = torch.randint(0, 300, (1, count))

    def decode(slot, neighbour_lengths):
        cache = llama.new_cache(8, 512)
        lengths = torch.tensor(neighbour_lengths)
        for row, length in enumerate(neighbour_lengths):
            if length:
                llama.forward(
                    torch.randint(0, 300, (1, length)), torch.zeros(1, dtype=torch.int64), cache.rows(row, row + 1)
                )
        llama.forward(text, torch.zeros(1, dtype=torch.int64), cache.rows(slot, slot + 1))
        lengths[slot] = 50
        ids = torch.randint(0, 300, (8, count))
        ids[slot] = block
        final, aux = llama.forward(ids, lengths, cache, (1, 3))
        return torch.cat((llama.logits(final)[slot], aux[slot]), -1)

    alone = decode(0, [0] * 8)
    for slot in range(8):
        crowd = torch.randint(1, 500, (8,)).tolist()
        assert torch.equal(decode(slot, crowd), alone), f"slot {slot}"


def test_extent_is_rounded_so_that_it_stays_inside_the_cache(pair):
    _, llama = pair
    cache = llama.new_cache(2, EXTENT + 1)
    assert cache.max_len == 2 * EXTENT
    with pytest.raises(ValueError, match="do not fit"):
        llama.forward(torch.zeros(2, 3, dtype=torch.int64), torch.tensor([0, cache.max_len - 2]), cache)


def test_copied_row_continues_like_its_source(pair):
    _, llama = pair
    cache = llama.new_cache(3, 64)
    llama.forward(torch.randint(0, 300, (3, 9)), torch.zeros(3, dtype=torch.int64), cache)
    cache.copy_row(0, 2, 9)
    final, _ = llama.forward(torch.full((3, 1), 4), torch.full((3,), 9), cache)
    assert torch.equal(final[0], final[2])
    assert not torch.equal(final[0], final[1])


def test_packed_products_equal_plain_ones():
    weight, x, other = torch.randn(24, 40), torch.randn(5, 40), torch.randn(5, 24)
    packed, plain = PackedLinear(weight), x @ weight.T
    torch.testing.assert_close(packed(x), plain, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(packed.silu(x), torch.nn.functional.silu(plain), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(packed.times(x, other), plain * other, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(packed.plus(x, other), plain + other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"architectures": ["Qwen3ForCausalLM"]}, "Qwen3ForCausalLM"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"quantization_config": {"quant_method": "gguf"}}, "quantization_config"),
    ],
)
def test_other_architectures_are_refused_with_the_way_out(change, named):
    with pytest.raises(InputError, match=named) as error:
        check_supported({**TINY, **change}, "models/x")
    assert "gateway=openai" in str(error.value) and "models/x" in str(error.value)
