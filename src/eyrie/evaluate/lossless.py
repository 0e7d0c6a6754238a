"""The promise of speculative decoding, checked: the same tokens as plain greedy decoding, or the job fails."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from eyrie.errors import EyrieError
from eyrie.evaluate.engine import TargetEngine
from eyrie.evaluate.greedy import Answer, Prompt
from eyrie.evaluate.speculative import Decoded


def compare(
    name: str, engine: TargetEngine, prompts: Sequence[Prompt], plain: Sequence[Answer], fast: Sequence[Decoded]
) -> int:
    """Tokens compared in the set `name`.

    Raises EyrieError at the first token that differs, naming set, prompt, position, both tokens and how far apart the
    target's two best tokens are there: two decoders sum in another order, and a gap of that size tells a rounding tie
    from a mistake.
    """
    for prompt, one, other in zip(prompts, plain, fast, strict=True):
        if one.tokens == other.tokens:
            continue
        pairs = zip(one.tokens, other.tokens, strict=False)
        at = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one.tokens), len(other.tokens)))
        gap = _gap(engine, [*prompt.tokens, *one.tokens[:at]])
        raise EyrieError(
            f"{name}: speculative decoding is not lossless: prompt {prompt.dataset}/{prompt.id}, answer token {at}: "
            f"plain greedy gives {_at(one.tokens, at)}, speculative {_at(other.tokens, at)}; the target's two best "
            f"logits differ by {gap:.3g} there (about 1e-5 or less: a rounding tie, use target.dtype=float32 or other "
            "prompts; more: a defect in the engine or the decoder)"
        )
    return sum(len(answer.tokens) for answer in plain)


def _at(tokens: Sequence[int], at: int) -> str:
    return f"token {tokens[at]}" if at < len(tokens) else "no more token"


def _gap(engine: TargetEngine, text: Sequence[int]) -> float:
    """Difference of the two best logits after `text`, from one pass without any history."""
    cache = engine.new_cache(1, len(text))
    rows = torch.zeros(1, dtype=torch.int64, device=engine.device)
    block = engine.extend(cache, rows, torch.tensor([list(text)], device=engine.device))
    best = engine.logits(block.final[0, -1]).topk(2).values
    return float(best[0] - best[1])
