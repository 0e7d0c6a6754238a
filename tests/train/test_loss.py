"""The loss against a plain formula, and its independence of how rows are laid out."""

from __future__ import annotations

from dataclasses import replace

import torch

from eyrie.train.batch import Example, pack
from eyrie.train.loss import CrossEntropy, Sums, step_weights, ttt_sums
from eyrie.train.unroll import unroll
from tests.drafter.drafters import make_drafter
from tests.train.examples import make_examples

STEPS = 3
DRAFTER = make_drafter().double()
HEAD = torch.randn(300, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) * 0.3
TEACHER = HEAD[DRAFTER.t2d]


def total(sums: Sums) -> torch.Tensor:
    return (sums.mean() * step_weights(STEPS, 0.8)).sum()


def gradients(loss: torch.Tensor) -> torch.Tensor:
    trained = [p for name, p in DRAFTER.named_parameters() if p.requires_grad]
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, trained, retain_graph=True)])


def same(left: Sums, right: Sums) -> None:
    for name in ("right", "slots", "trained"):
        assert torch.equal(getattr(left, name), getattr(right, name)), name
    assert torch.allclose(left.loss, right.loss, rtol=1e-11, atol=0)
    assert torch.allclose(gradients(total(left)), gradients(total(right)), rtol=0, atol=1e-12)


def test_loss_is_the_mean_kl_over_slots_whose_greedy_token_is_drafted() -> None:
    examples = make_examples(DRAFTER)
    batch = pack(examples, STEPS)
    sums = ttt_sums(DRAFTER, TEACHER, batch)
    outputs = unroll(DRAFTER, batch)
    ids = DRAFTER.t2d.nonzero().flatten().tolist()
    for step in range(STEPS):
        kls, right = [], 0
        for place, flat in enumerate(batch.slots[step].tolist()):
            row = max(r for r, start in enumerate(batch.offsets[:-1]) if start <= flat)
            label = flat - batch.offsets[row] + 1 + step
            greedy = int(examples[row].argmax[label])
            if greedy not in ids:
                continue
            target = (HEAD[ids] @ examples[row].final[label]).softmax(-1)
            draft = DRAFTER.logits(outputs[step][place]).softmax(-1)
            kls.append((target * (target.log() - draft.log())).sum())
            right += ids[int(draft.argmax())] == greedy
        assert 0 < len(kls) < len(batch.slots[step]) == sums.trained[step]
        assert (int(sums.slots[step]), int(sums.right[step])) == (len(kls), right)
        assert torch.allclose(sums.mean()[step], torch.stack(kls).mean(), rtol=1e-10)


def test_loss_is_invariant_under_packing_and_batch_split() -> None:
    examples = make_examples(DRAFTER)
    together = ttt_sums(DRAFTER, TEACHER, pack(examples, STEPS))
    alone = [ttt_sums(DRAFTER, TEACHER, pack([example], STEPS)) for example in examples]
    same(together, alone[0] + alone[1] + alone[2] + alone[3])
    same(together, ttt_sums(DRAFTER, TEACHER, pack(examples[::-1], STEPS)))
    halves = [ttt_sums(DRAFTER, TEACHER, pack(part, STEPS)) for part in (examples[:1], examples[1:])]
    same(together, halves[0] + halves[1])


def test_loss_is_invariant_under_padding_and_whatever_stands_after_the_last_span() -> None:
    def pad(example: Example) -> Example:
        junk = {"aux": 1e6, "final": -1e6, "tokens": 5, "argmax": 7}
        padded = {
            name: torch.cat([getattr(example, name), torch.full_like(getattr(example, name)[:9], value)])
            for name, value in junk.items()
        }
        return replace(example, **padded)

    examples = make_examples(DRAFTER)
    padded = [pad(example) for example in examples]
    same(ttt_sums(DRAFTER, TEACHER, pack(examples, STEPS)), ttt_sums(DRAFTER, TEACHER, pack(padded, STEPS)))


def test_tokens_of_one_row_never_reach_another() -> None:
    examples = make_examples(DRAFTER)
    other = replace(examples[1], aux=examples[1].aux + 3, tokens=examples[1].tokens.flip(0))
    part = pack([examples[0], examples[1]], STEPS)
    changed = pack([examples[0], other], STEPS)
    for old, new, slots in zip(unroll(DRAFTER, part), unroll(DRAFTER, changed), part.slots, strict=True):
        first = slots < part.offsets[1]
        assert torch.equal(old[first], new[first])
        assert not torch.allclose(old[~first], new[~first])


def test_gradient_is_finite_when_a_step_has_no_slot_and_reaches_every_weight_else() -> None:
    short = pack(make_examples(DRAFTER, [[(3, 6)]]), STEPS)
    assert [len(slots) for slots in short.slots] == [2, 1, 0]
    assert gradients(total(ttt_sums(DRAFTER, TEACHER, short))).isfinite().all()
    loss = total(ttt_sums(DRAFTER, TEACHER, pack(make_examples(DRAFTER), STEPS)))
    named = [(name, p) for name, p in DRAFTER.named_parameters() if p.requires_grad]
    for (name, _), grad in zip(named, torch.autograd.grad(loss, [p for _, p in named]), strict=True):
        assert grad.isfinite().all() and grad.abs().max() > 0, name


def test_the_gradient_by_hand_is_that_of_the_formula() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 7, dtype=torch.float64, generator=generator, requires_grad=True)
    target = torch.randn(3, 7, dtype=torch.float64, generator=generator).softmax(-1)
    at = torch.tensor([0, 2, 2, 1, 0])
    assert torch.autograd.gradcheck(lambda x: CrossEntropy.apply(x, target, at), (logits,))
    plain = -(target[at] * logits.log_softmax(-1)).sum(-1)
    assert torch.allclose(CrossEntropy.apply(logits, target, at), plain)


def test_step_weights_sum_to_one() -> None:
    assert torch.allclose(step_weights(4, 0.8).sum(), torch.tensor(1.0, dtype=torch.float64))
    assert torch.allclose(step_weights(3, 0.5), torch.tensor([4, 2, 1], dtype=torch.float64) / 7)
