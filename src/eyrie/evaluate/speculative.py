"""Greedy speculative decoding with chain drafts: the target verifies a block of drafts in one pass.

It must give exactly what plain greedy decoding gives. How many tokens a pass yields is the acceptance length.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eyrie.drafter.model import Drafter
from eyrie.evaluate.drafting import ChainDrafter
from eyrie.evaluate.engine import TargetEngine
from eyrie.evaluate.estimates import Passes
from eyrie.evaluate.greedy import Prefilled, Prompt


@dataclass
class Decoded:
    """Tokens of one prompt, end token included, and the passes that gave them (all but the first token)."""

    tokens: list[int]
    passes: Passes


def speculate(
    engine: TargetEngine,
    drafter: Drafter,
    prompts: Sequence[Prompt],
    start: Prefilled,
    ends: Collection[int],
    max_new: int,
    chain: int,
    width: int,
) -> list[Decoded]:
    """Decode `prompts` from their prefill, `width` rows at a time; a finished row makes room for the next prompt.

    A row with `n` tokens, the last one not yet seen by the target, drafts `chain` tokens from slot `n - 2`; the target
    reads the last token and the drafts in one block and keeps the drafts that equal its own greedy choice, then adds
    that choice after them. Both caches are cut back to what was kept. The drafter then reads the target's true states
    of the kept tokens. An end token, or `max_new`, ends the answer inside a block as it does between passes.
    """
    cache, device = start.cache, engine.device
    capacity = max(len(prompt.tokens) for prompt in prompts) + max_new + chain
    chains = ChainDrafter(drafter, len(prompts), capacity)
    decoded = [Decoded([token], Passes(chain)) for token in start.first]
    fresh = list(start.aux)  # states of the slots that the drafter has not read yet, one tensor [m, 3H] per prompt
    waiting = deque(range(len(prompts)))
    live: list[int] = []
    while True:
        live = [i for i in live if not _finished(decoded[i].tokens, ends, max_new)]
        while waiting and len(live) < width:
            candidate = waiting.popleft()
            if not _finished(decoded[candidate].tokens, ends, max_new):
                _read_prompt(chains, candidate, prompts[candidate], fresh)
                live.append(candidate)
        if not live:
            return decoded
        rows = torch.tensor(live, device=device)
        counts = torch.tensor([len(fresh[i]) for i in live], device=device)
        most = int(counts.max())
        tokens = torch.zeros(len(live), most, dtype=torch.int64, device=device)
        aux = fresh[live[0]].new_zeros(len(live), most, fresh[live[0]].shape[1])
        for place, i in enumerate(live):
            count = len(fresh[i])
            tokens[place, :count] = torch.tensor(decoded[i].tokens[-count:], device=device)
            aux[place, :count] = fresh[i]
        drafts = chains.draft(rows, chains.follow(rows, tokens, aux, counts), chain)

        pending = tokens.gather(1, counts[:, None] - 1)  # the last token of each answer
        block = engine.extend(cache, rows, torch.cat([pending, drafts], dim=1))
        choice = engine.logits(block.final).argmax(-1)  # [R, chain + 1]
        right = (drafts == choice[:, :-1]).to(torch.int64).cumprod(1).sum(1)
        cache.lengths[rows] += right + 1
        for place, i in enumerate(live):
            kept = int(right[place]) + 1
            fresh[i] = block.aux[place, :kept].clone()
            given = choice[place, :kept].tolist()
            room = _room(given, len(decoded[i].tokens), ends, max_new)
            decoded[i].tokens += given[: decoded[i].passes.add(kept - 1, room)]


def _read_prompt(chains: ChainDrafter, row: int, prompt: Prompt, fresh: list[Tensor]) -> None:
    """Give the drafter the prompt's slots but the last, whose token the target has just generated."""
    count = len(prompt.tokens) - 1
    if count:
        tokens = torch.tensor(prompt.tokens[1:], device=chains.device)[None]
        where, counts = torch.tensor([[row], [count]], device=chains.device)
        chains.follow(where, tokens, fresh[row][None, :count], counts)
    fresh[row] = fresh[row][count:]


def _finished(tokens: Sequence[int], ends: Collection[int], max_new: int) -> bool:
    return tokens[-1] in ends or len(tokens) >= max_new


def _room(given: Sequence[int], have: int, ends: Collection[int], max_new: int) -> int:
    """How many of the tokens that a pass gave the answer takes."""
    for place, token in enumerate(given):
        if token in ends:
            return min(place + 1, max_new - have)
    return max_new - have
