"""Two estimates of acceptance from recorded states. They differ by construction and are never mixed.

*Slot mean*: 1 + the joint prefix acceptance averaged over all trained slots; every slot counts once, so it shows how
training goes. *Chain replay*: the passes that a real decode would make along the greedy text; passes that accept much
are few and cover many tokens, so it is lower, and it is what serving shows.

Both need one thing per slot: how many drafts in a row are right. Drafting with the drafter's own tokens and drafting
with the text's tokens give the same number, since up to the first wrong draft they are the same tokens. So one
teacher-forced pass serves both, all slots at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from eyrie.drafter.acceptance import joint_prefix, slot_mean
from eyrie.drafter.cache import DraftCache
from eyrie.drafter.model import Drafter
from eyrie.shards.slots import trained_slots


@torch.inference_mode()
def chain_drafts(drafter: Drafter, aux: Tensor, tokens: Tensor, slots: Tensor, chain: int) -> Tensor:
    """`int64[M, chain]`: what the drafter guesses from each slot, reading the text.

    `aux [T, 3H]` are the target's states, `tokens int64[T]` the text, `slots int64[M]` the slots to draft from.
    Serving convention: slot `i` reads token `i + 1` and the states at `i`, at rope position `i`; draft step `k` reads
    token `i + 1 + k` at rope position `i + k`, attends the first-step keys up to slot `i` and the later keys of its
    own slot, and guesses what follows the token that it read.
    """
    drafts = torch.empty(len(slots), chain, dtype=torch.int64, device=tokens.device)
    if not len(slots):
        return drafts
    used = int(slots.max()) + 1  # slots 0 .. used - 1 are context
    positions = torch.arange(used, device=tokens.device)
    hidden = drafter.fuse(aux[:used])[None]
    cache = DraftCache()
    causal = positions[None, :] <= positions[:, None]
    out = drafter.layer(drafter.embed(tokens[1 : used + 1])[None], hidden, positions[None], cache, causal[None])
    state = out[:, slots]
    own = torch.eye(len(slots), dtype=torch.bool, device=tokens.device)
    mask = causal[slots]
    for step in range(chain):
        if step:
            mask = torch.cat([mask, own], dim=1)
            read = tokens[(slots + 1 + step).clamp(max=len(tokens) - 1)]
            state = drafter.layer(drafter.embed(read)[None], state, (slots + step)[None], cache, mask[None])
        drafts[:, step] = drafter.to_target(drafter.logits(state)[0].argmax(-1))
    return drafts


def right_in_a_row(drafts: Tensor, labels: Tensor, slots: Tensor) -> Tensor:
    """`int64[M]`: how many leading drafts of each slot are right.

    `labels int64[T]` say what must follow each token: the target's own choice, or the text itself. A draft without a
    label is wrong.
    """
    at = slots[:, None] + 1 + torch.arange(drafts.shape[1], device=slots.device)
    right = (at < len(labels)) & (drafts == labels[at.clamp(max=len(labels) - 1)])
    return right.to(torch.int64).cumprod(1).sum(1)


def checked_slots(spans: Sequence[tuple[int, int]], length: int, chain: int) -> tuple[Tensor, Tensor]:
    """`(slots, checked)`, both `int64[M]`: the trained slots of a row, ascending, and how many leading drafts of a
    chain a decode would check there: those whose place lies inside the slot's span."""
    steps = [torch.from_numpy(trained_slots(spans, length, step)) for step in range(chain)]
    slots = steps[0].nonzero()[:, 0]
    return slots, torch.stack([step[slots] for step in steps]).to(torch.int64).sum(0)


@dataclass
class Slots:
    """The slots of many rows, with chains of `chain` drafts."""

    chain: int
    right: list[Tensor] = field(default_factory=list)
    checked: list[Tensor] = field(default_factory=list)

    def add(self, right: Tensor, checked: Tensor) -> None:
        """Add the slots of one row: leading drafts that are right, and those that a decode would check."""
        self.right.append(right)
        self.checked.append(checked)

    @property
    def count(self) -> int:
        return sum(len(part) for part in self.right)

    def means(self, chains: Sequence[int]) -> dict[str, float]:
        """Chain length to slot mean, each step averaged over the slots that have it; empty when there is no slot."""
        if not self.count:
            return {}
        steps = torch.arange(self.chain)
        right, checked = torch.cat(self.right)[:, None], torch.cat(self.checked)[:, None]
        joint = joint_prefix(steps < right, steps < checked)
        return {str(chain): slot_mean(joint, chain) for chain in chains}


@dataclass
class Passes:
    """Target passes and the tokens they gave, the bonus token included, the prefill and its token not."""

    chain: int
    passes: int = 0
    tokens: int = 0
    accepted: list[int] = field(default_factory=list)  # [k]: passes of which drafts 0..k were right and kept

    def __post_init__(self) -> None:
        self.accepted = self.accepted or [0] * self.chain

    def add(self, right: int, room: int) -> int:
        """Count a pass with `right` correct drafts where the answer takes `room` more tokens; returns what it gave."""
        emitted = min(right + 1, room)
        self.passes += 1
        self.tokens += emitted
        for k in range(min(right, emitted)):
            self.accepted[k] += 1
        return emitted

    def merge(self, other: Passes) -> None:
        """Add the sums of `other`."""
        self.passes += other.passes
        self.tokens += other.tokens
        self.accepted = [mine + theirs for mine, theirs in zip(self.accepted, other.accepted, strict=True)]

    @property
    def acceptance_length(self) -> float:
        """Tokens per target pass; 0 when there was no pass."""
        return self.tokens / self.passes if self.passes else 0.0

    @property
    def per_position(self) -> list[float]:
        """Share of passes whose drafts up to each position were all right (joint, not conditional)."""
        return [count / self.passes if self.passes else 0.0 for count in self.accepted]


def replay(run: Tensor, span: tuple[int, int], chain: int) -> Passes:
    """Walk the passes of a real decode along the greedy text of one answer.

    The answer is `[s, e)` of the row and `run int64[e - s]` the number of right drafts from slots `s - 1 .. e - 2`.
    A pass with token `n` pending drafts from slot `n - 1` and gives the right drafts plus the target's own token, cut
    where the answer ends. Token `s` comes from the prefill and belongs to no pass.
    """
    start, end = span
    total = Passes(chain)
    pending = start
    while pending < end - 1:
        pending += total.add(min(int(run[pending - start]), chain), end - 1 - pending)
    return total
