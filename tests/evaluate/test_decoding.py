"""Speculative decoding is plain greedy decoding, only in fewer passes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from transformers import LlamaForCausalLM

from eyrie.errors import EyrieError
from eyrie.evaluate.engine import Block, TargetEngine
from eyrie.evaluate.greedy import Answer, Prompt, greedy, prefill
from eyrie.evaluate.lossless import compare
from eyrie.evaluate.speculative import Decoded, speculate
from tests.evaluate.models import Oracle, engines, memoryless, some_prompts, tiny_drafter, tiny_model


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return tiny_model()


@pytest.fixture(params=["transformers", "packed"])
def engine(request: pytest.FixtureRequest, model: LlamaForCausalLM) -> TargetEngine:
    return engines(model)[request.param]


def both(
    engine: TargetEngine, drafter, prompts: list[Prompt], ends: set[int], max_new: int, chain: int, width: int
) -> tuple[list[Answer], list[Decoded]]:
    start = prefill(engine, prompts, max_new + chain + 1)
    lengths = start.cache.lengths.clone()
    plain = greedy(engine, start, ends, max_new)
    start.cache.lengths[:] = lengths
    start.cache.forget()
    return plain, speculate(engine, drafter, prompts, start, ends, max_new, chain, width)


@torch.inference_mode()
def test_plain_greedy_equals_a_decode_without_cache_or_batch(engine: TargetEngine, model: LlamaForCausalLM) -> None:
    prompts = some_prompts(6)
    answers = greedy(engine, prefill(engine, prompts, 32), {3}, 24)
    for answer, prompt in zip(answers, prompts, strict=True):
        ids = list(prompt.tokens)
        while len(ids) < len(prompt.tokens) + 24 and ids[len(prompt.tokens) :][-1:] != [3]:
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        assert answer.tokens == ids[len(prompt.tokens) :]


@torch.inference_mode()
def test_greedy_keeps_the_states_that_a_pass_over_the_whole_text_gives(
    engine: TargetEngine, model: LlamaForCausalLM
) -> None:
    prompts = some_prompts(3)
    answers = greedy(engine, prefill(engine, prompts, 16), set(), 12, keep_states=True)
    for answer, prompt in zip(answers, prompts, strict=True):
        text = torch.tensor([[*prompt.tokens, *answer.tokens[:-1]]])
        states = model(text, output_hidden_states=True).hidden_states
        assert torch.allclose(answer.aux, torch.cat([states[j] for j in (1, 2, 3)], -1)[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("chain", "width", "ends", "kept"),
    [(1, 1, set(), None), (3, 4, {6}, None), (5, 16, {0, 5}, 5), (7, 3, set(), 4), (3, 2, set(range(7)), None)],
)
def test_speculation_gives_the_greedy_answer(
    engine: TargetEngine, model: LlamaForCausalLM, chain: int, width: int, ends: set[int], kept: int | None
) -> None:
    plain, fast = both(engine, tiny_drafter(model, kept=kept), some_prompts(8), ends, 30, chain, width)
    assert [decoded.tokens for decoded in fast] == [answer.tokens for answer in plain]
    tokens = sum(decoded.passes.tokens for decoded in fast)
    assert tokens == sum(len(answer.tokens) - 1 for answer in plain)
    assert tokens == 0 or sum(decoded.passes.passes for decoded in fast) < tokens, "no draft was right: shows nothing"


def test_a_perfect_drafter_gives_a_whole_block_a_pass_until_the_end() -> None:
    model = memoryless(tiny_model(vocab=50, seed=4))
    for name, engine in engines(model).items():
        plain, fast = both(engine, Oracle(model), some_prompts(5, 50), set(), 1 + 4 * 6, 3, 2)
        assert [decoded.tokens for decoded in fast] == [answer.tokens for answer in plain], name
        assert all(decoded.passes.acceptance_length == 4.0 for decoded in fast), name
        assert all(decoded.passes.per_position == [1.0, 1.0, 1.0] for decoded in fast), name


def test_a_drafter_that_is_always_wrong_gives_one_token_a_pass() -> None:
    model = memoryless(tiny_model(vocab=50, seed=4))
    plain, fast = both(engines(model)["packed"], Oracle(model, shift=1), some_prompts(5, 50), set(), 20, 3, 2)
    assert [decoded.tokens for decoded in fast] == [answer.tokens for answer in plain]
    assert all(decoded.passes.acceptance_length == 1.0 for decoded in fast)
    assert all(decoded.passes.per_position == [0.0, 0.0, 0.0] for decoded in fast)


def test_an_end_token_inside_an_accepted_block_ends_the_answer_there() -> None:
    model = memoryless(tiny_model(vocab=50, seed=4))
    engine = engines(model)["packed"]
    prompts = some_prompts(6, 50)
    open_end = greedy(engine, prefill(engine, prompts, 40), set(), 30)
    for at in range(1, 9):  # the end falls on every place of a block of six
        end = open_end[1].tokens[at]
        plain, fast = both(engine, Oracle(model), prompts, {end}, 30, 5, 4)
        assert [decoded.tokens for decoded in fast] == [answer.tokens for answer in plain]
        answer = fast[1]
        assert end not in answer.tokens[:-1] and answer.tokens[-1] == end
        assert answer.passes.tokens == len(answer.tokens) - 1
        assert answer.passes.passes == -(-answer.passes.tokens // 6)


def test_max_new_tokens_cuts_inside_a_block() -> None:
    model = memoryless(tiny_model(vocab=50, seed=4))
    for max_new in (1, 2, 5, 6, 7):
        plain, fast = both(engines(model)["packed"], Oracle(model), some_prompts(3, 50), set(), max_new, 4, 8)
        assert [decoded.tokens for decoded in fast] == [answer.tokens for answer in plain]
        assert all(len(decoded.tokens) == max_new for decoded in fast)


class Sabotaged:
    """An engine that errs while it verifies a block of drafts."""

    def __init__(self, engine: TargetEngine, fault: str) -> None:
        self.engine, self.fault = engine, fault
        self.vocab_size, self.max_positions, self.device = engine.vocab_size, engine.max_positions, engine.device

    def new_cache(self, rows: int, capacity: int):
        return self.engine.new_cache(rows, capacity)

    def extend(self, cache, rows: torch.Tensor, tokens: torch.Tensor) -> Block:
        lengths = cache.lengths.clone()
        if tokens.shape[1] == 4 and bool((lengths[rows] > 0).all()):
            cache.lengths[rows] -= 1
            if self.fault == "stale cache":  # the last kept token's keys are those of another token
                self.engine.extend(cache, rows, (tokens[:, :1] + 1) % self.vocab_size)
                cache.lengths[rows] += 1
        block = self.engine.extend(cache, rows, tokens)
        cache.lengths[:] = lengths
        return block

    def logits(self, final: torch.Tensor) -> torch.Tensor:
        return self.engine.logits(final)


@pytest.mark.parametrize("fault", ["wrong position", "stale cache"])
def test_a_target_that_verifies_wrongly_fails_the_job(
    engine: TargetEngine, model: LlamaForCausalLM, fault: str
) -> None:
    prompts = some_prompts(8)
    sabotaged = Sabotaged(engine, fault)
    plain, fast = both(sabotaged, tiny_drafter(model), prompts, set(), 30, 3, 4)
    with pytest.raises(EyrieError, match=r"holdout: .*not lossless: prompt (one|two)/p\d, answer token \d+: plain"):
        compare("holdout", sabotaged, prompts, plain, fast)


def test_the_failure_names_place_tokens_and_gap(model: LlamaForCausalLM) -> None:
    engine = engines(model)["packed"]
    prompts = some_prompts(2)
    plain = greedy(engine, prefill(engine, prompts, 16), set(), 10)
    fast = [Decoded(list(answer.tokens), None) for answer in plain]
    assert compare("demo", engine, prompts, plain, fast) == 20
    with torch.inference_mode():
        text = torch.tensor([[*prompts[1].tokens, *plain[1].tokens[:4]]])
        best = model(text).logits[0, -1].topk(2)
    fast[1].tokens[4] = int(best.indices[1])
    with pytest.raises(EyrieError) as caught:
        compare("demo", engine, prompts, plain, fast)
    message = str(caught.value)
    assert "demo: " in message and "prompt two/p1, answer token 4: " in message
    assert f"plain greedy gives token {int(best.indices[0])}, speculative token {int(best.indices[1])};" in message
    assert f"differ by {float(best.values[0] - best.values[1]):.3g} there" in message
    fast[1].tokens[4:] = []
    with pytest.raises(EyrieError, match="speculative no more token"):
        compare("demo", engine, prompts, plain, fast)
