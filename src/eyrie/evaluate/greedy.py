"""Prefill and plain greedy decoding: what speculative decoding must equal, token for token."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eyrie.evaluate.engine import TargetCache, TargetEngine

PREFILL_TOKENS = 2048  # padded tokens of one prefill pass: bounds its activations


@dataclass(frozen=True)
class Prompt:
    """`tokens` are the ids up to where generation starts; `id` is unique within `dataset`."""

    dataset: str
    id: str
    tokens: tuple[int, ...]


@dataclass
class Prefilled:
    """What the prefill left of each prompt: the greedy first token and the aux states `[P, 3H]`.

    The cache row of prompt `i` is row `i`, its length the prompt's length `P`.
    """

    cache: TargetCache
    first: list[int]
    aux: list[Tensor]


@dataclass
class Answer:
    """Greedy tokens of one prompt, end token included, and the aux states `[P + len(tokens) - 1, 3H]` behind them."""

    tokens: list[int]
    aux: Tensor | None = None


def prefill(engine: TargetEngine, prompts: Sequence[Prompt], room: int) -> Prefilled:
    """Run all prompts into one new cache with `room` positions left for each."""
    cache = engine.new_cache(len(prompts), max(len(prompt.tokens) for prompt in prompts) + room)
    first = [0] * len(prompts)
    aux: list[Tensor] = [torch.empty(0)] * len(prompts)
    for group in _groups(prompts):
        longest = max(len(prompts[index].tokens) for index in group)
        block = torch.zeros(len(group), longest, dtype=torch.int64, device=engine.device)
        for place, index in enumerate(group):
            block[place, : len(prompts[index].tokens)] = torch.tensor(prompts[index].tokens, device=engine.device)
        rows = torch.tensor(group, device=engine.device)
        out = engine.extend(cache, rows, block)
        lengths = torch.tensor([len(prompts[index].tokens) for index in group], device=engine.device)
        cache.lengths[rows] = lengths
        chosen = engine.logits(out.final[torch.arange(len(group), device=engine.device), lengths - 1]).argmax(-1)
        for place, index in enumerate(group):
            first[index] = int(chosen[place])
            aux[index] = out.aux[place, : lengths[place]].clone()
    return Prefilled(cache, first, aux)


def _groups(prompts: Sequence[Prompt]) -> list[list[int]]:
    """Indices in order of length, cut so that each group, padded, stays within PREFILL_TOKENS."""
    groups: list[list[int]] = []
    for index in sorted(range(len(prompts)), key=lambda i: (len(prompts[i].tokens), i)):
        length = len(prompts[index].tokens)
        if not groups or length * (len(groups[-1]) + 1) > PREFILL_TOKENS:
            groups.append([])
        groups[-1].append(index)
    return groups


def greedy(
    engine: TargetEngine, start: Prefilled, ends: Collection[int], max_new: int, *, keep_states: bool = False
) -> list[Answer]:
    """Decode every row one token a pass until an end token or `max_new` tokens; finished rows leave the batch.

    `keep_states` keeps the aux states of prompt and answer, which cost `3H` numbers a token.
    """
    answers = [Answer([token]) for token in start.first]
    states = [[aux] if keep_states else [] for aux in start.aux]
    while True:
        live = [i for i, answer in enumerate(answers) if answer.tokens[-1] not in ends and len(answer.tokens) < max_new]
        if not live:
            break
        rows = torch.tensor(live, device=engine.device)
        last = torch.tensor([[answers[i].tokens[-1]] for i in live], device=engine.device)
        block = engine.extend(start.cache, rows, last)
        start.cache.lengths[rows] += 1
        for i, token in zip(live, engine.logits(block.final[:, 0]).argmax(-1).tolist(), strict=True):
            answers[i].tokens.append(token)
        if keep_states:
            for place, i in enumerate(live):
                states[i].append(block.aux[place])
    for answer, parts in zip(answers, states, strict=True):
        answer.aux = torch.cat(parts) if parts else None
    return answers
