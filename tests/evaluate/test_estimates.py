"""The estimates against literal walks, and replay against the real decode."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from eyrie.drafter import DraftCache, Drafter
from eyrie.evaluate.estimates import Passes, Slots, chain_drafts, checked_slots, replay, right_in_a_row
from eyrie.evaluate.measure import SetMeasure, Settings, follow
from tests.evaluate.models import engines, some_prompts, tiny_drafter, tiny_model


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return tiny_model()


def chain_from(drafter: Drafter, aux: Tensor, tokens: Tensor, slot: int, chain: int, read: Tensor | None) -> list[int]:
    """Drafts from one slot, literally: the prompt's slots one by one, then each step, all from the beginning.

    `read` are the tokens fed to steps 1, 2, ... (the text); None feeds the drafter's own.
    """
    cache = DraftCache()
    for i in range(slot + 1):
        state = drafter.layer(
            drafter.embed(tokens[i + 1][None, None]), drafter.fuse(aux[i][None, None]), torch.tensor([[i]]), cache
        )
    drafts = [int(drafter.to_target(drafter.logits(state).argmax(-1)))]
    for step in range(1, chain):
        token = drafts[-1] if read is None else int(read[step - 1])
        state = drafter.layer(drafter.embed(torch.tensor([[token]])), state, torch.tensor([[slot + step]]), cache)
        drafts.append(int(drafter.to_target(drafter.logits(state).argmax(-1))))
    return drafts


@torch.inference_mode()
def test_right_drafts_equal_a_literal_chain_at_every_trained_slot(model: LlamaForCausalLM) -> None:
    torch.manual_seed(3)
    chain, spans = 4, [(3, 9), (14, 24)]
    tokens, aux = torch.randint(0, 7, (24,)), torch.randn(24, 192)
    argmax = torch.randint(0, 7, (24,))  # a text that is not the target's first choice
    for kept in (7, 4):
        drafter = tiny_drafter(model, seed=5, kept=kept)
        where, checked = checked_slots(spans, 24, chain)
        right = right_in_a_row(chain_drafts(drafter, aux, tokens, where, chain), argmax, where)
        expected = []
        for start, end in spans:
            for slot in range(start - 1, end - 2):
                steps = min(chain, end - 2 - slot)  # i + 2 + k <= e
                said = chain_from(drafter, aux, tokens, slot, steps, tokens[slot + 2 :])
                run = 0
                while run < steps and said[run] == argmax[slot + 1 + run]:
                    run += 1
                expected.append((run, steps))
        assert [(min(r, d), d) for r, d in zip(right.tolist(), checked.tolist(), strict=True)] == expected
        slots = Slots(chain)
        slots.add(right, checked)
        for length in (1, 2, 4):
            by_step = [[run > k for run, steps in expected if k < steps] for k in range(length)]
            mean = 1 + sum(sum(hits) / len(hits) for hits in by_step)
            assert slots.means([length]) == {str(length): pytest.approx(mean, abs=1e-12)}
    assert sum(run for run, _ in expected) > 0


@torch.inference_mode()
def test_text_tokens_and_own_tokens_give_the_same_run(model: LlamaForCausalLM) -> None:
    torch.manual_seed(4)
    tokens, aux = torch.randint(5, 7, (40,)), torch.randn(40, 192)
    drafter, slots = tiny_drafter(model, seed=6, kept=2), torch.arange(2, 30)
    right = right_in_a_row(chain_drafts(drafter, aux, tokens, slots, 5), follow(tokens), slots)
    for slot, run in zip(slots.tolist(), right.tolist(), strict=True):
        own = chain_from(drafter, aux, tokens, slot, 5, None)
        matches = [a == b for a, b in zip(own, tokens[slot + 2 :].tolist(), strict=False)] + [False]
        assert run == matches.index(False)
    assert right.max() >= 2


def test_replay_walks_pass_by_pass() -> None:
    #        pending s=5: 2 right of 3 -> tokens 6,7,8; pending 8: 0 -> 9; pending 9: 3 -> 10,11 (the answer ends at 12)
    right = torch.tensor([2, 9, 9, 0, 3, 9, 9])
    passes = replay(right, (5, 12), 3)
    assert (passes.passes, passes.tokens) == (3, 6)
    assert passes.accepted == [2, 2, 0]  # of the last block two drafts were kept and nothing beyond
    assert replay(right, (5, 12), 1).passes == 3
    assert replay(right, (5, 6), 3) == Passes(3)


@torch.inference_mode()
@pytest.mark.parametrize("name", ["transformers", "packed"])
def test_replay_along_greedy_text_is_the_real_decode(model: LlamaForCausalLM, name: str) -> None:
    drafter, engine = tiny_drafter(model, seed=2, kept=6), engines(model)[name]
    for chain in (1, 3, 6):
        settings = Settings(chain=chain, chains=(chain,), max_new=40, rows=99, width=3, ends=frozenset({0}))
        measure = SetMeasure("demo", engine, drafter, settings, lambda line: None)
        for text in measure.decode(some_prompts(9), keep_states=True):
            measure.estimate(text, replayed=True)
        for sums in (measure.total, *measure.per_dataset.values()):
            assert sums.replayed[chain] == sums.decoded
            assert sums.greedy == sums.text == sums.tokens
        assert measure.total.decoded.passes < measure.total.decoded.tokens, "nothing was ever accepted"
        entry = measure.report(per_dataset=True)
        assert entry["decode"][str(chain)]["acceptance_length"] == entry["chain_replay"][str(chain)]
        assert sum(part["tokens"] for part in entry["per_dataset"].values()) == entry["tokens"]
        shares = entry["decode"][str(chain)]["per_position"]
        assert shares == sorted(shares, reverse=True) and len(shares) == chain
