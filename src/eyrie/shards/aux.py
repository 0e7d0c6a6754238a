"""Which three layers of the target EAGLE-3 reads, in one convention, converted only at an engine's border.

The same three numbers mean different layers in SGLang and in vLLM, and neither engine notices a mistake: acceptance
just drops. So every part of Eyrie speaks of layers by their HF `hidden_states` index and lets this type spell them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eyrie.errors import InputError

KEY = "capture.aux_layers"


@dataclass(frozen=True)
class AuxLayers:
    """Three ascending HF `hidden_states` indices of a target of `layers` decoder layers.

    Index `j` is the *input* of decoder layer `j`, which is the output of layer `j - 1`. Index 0 is the embedding, which
    no engine captures, and index `layers` is the final state after the norm, which is stored on its own: so the valid
    indices are 1 to `layers - 1`. They must ascend because engines concatenate the states in the order in which the
    forward pass meets them, whatever order a configuration lists.

    Raises InputError, naming the key `capture.aux_layers` and the valid choices, on anything else.
    """

    low: int
    mid: int
    high: int
    layers: int

    def __post_init__(self) -> None:
        if any(isinstance(index, bool) or not isinstance(index, int) for index in (*self.hf, self.layers)):
            raise InputError(f"{KEY}={list(self.hf)}: layer indices must be whole numbers")
        if self.layers < 4:
            raise InputError(f"{KEY}: a target of {self.layers} layers has no three aux layers; it needs at least 4")
        if not 1 <= self.low < self.mid < self.high < self.layers:
            raise InputError(f"{KEY}={list(self.hf)}: {self._fault()}; {self._choices()}")

    def _fault(self) -> str:
        if len(set(self.hf)) < 3:
            return "two of the three aux layers are the same layer"
        outside = [index for index in self.hf if not 1 <= index < self.layers]
        if outside:
            return f"index {outside[0]} is outside the {self.layers}-layer target"
        return "the indices must ascend, as engines concatenate the states in layer order"

    def _choices(self) -> str:
        return f"choose three ascending hidden_states indices from 1 to {self.layers - 1}, e.g. {self._example()}"

    def _example(self) -> list[int]:
        default = (2, self.layers // 2, self.layers - 3)
        return list(default) if len(set(default)) == 3 and min(default) > 0 else [1, self.layers // 2, self.layers - 1]

    @classmethod
    def default(cls, layers: int) -> AuxLayers:
        """HF indices 2, L//2, L-3: the outputs of layers 1, L//2-1 and L-4, the default of every engine and trainer.

        Raises InputError for a target so shallow (L <= 6) that two of them collide.
        """
        default = (2, layers // 2, layers - 3)
        if layers >= 4 and not 2 < default[1] < default[2]:
            raise InputError(
                f"{KEY}: the default aux layers 2, L//2, L-3 = {list(default)} collide in a target of {layers} layers; "
                f"set {KEY} to three ascending hidden_states indices from 1 to {layers - 1}, "
                f"e.g. {KEY}={cls(1, layers // 2, layers - 1, layers)._example()}"
            )
        return cls(*default, layers)

    @classmethod
    def from_config(cls, choice: Sequence[int] | None, layers: int) -> AuxLayers:
        """The value of `capture.aux_layers` (HF indices, or None for the default) for a target of `layers` layers."""
        return cls.default(layers) if choice is None else cls.from_hf(choice, layers)

    @classmethod
    def from_hf(cls, ids: Sequence[int], layers: int) -> AuxLayers:
        """From HF `hidden_states` indices."""
        if len(ids) != 3:
            raise InputError(f"{KEY}={list(ids)}: EAGLE-3 reads exactly three layers, got {len(ids)}")
        return cls(ids[0], ids[1], ids[2], layers)

    @classmethod
    def from_sglang(cls, ids: Sequence[int], layers: int) -> AuxLayers:
        """From SGLang's nested `eagle_config` list, whose ids mean the *output* of a layer."""
        return cls.from_hf([index + 1 for index in ids], layers)

    @classmethod
    def from_vllm(cls, ids: Sequence[int], layers: int) -> AuxLayers:
        """From vLLM's top-level list, whose ids mean the *input* of a layer, as Hugging Face's do."""
        return cls.from_hf(ids, layers)

    @property
    def hf(self) -> tuple[int, int, int]:
        """HF `hidden_states` indices."""
        return (self.low, self.mid, self.high)

    @property
    def sglang(self) -> tuple[int, int, int]:
        """`eagle_config.eagle_aux_hidden_state_layer_ids` (nested) as SGLang reads it: output of layer id."""
        return (self.low - 1, self.mid - 1, self.high - 1)

    @property
    def vllm(self) -> tuple[int, int, int]:
        """`eagle_aux_hidden_state_layer_ids` (top level) as vLLM reads it: input of layer id."""
        return self.hf
