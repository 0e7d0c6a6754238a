"""The reference engine: any causal model of transformers, on the CPU or a GPU.

Only what is stored is computed. The three aux states are taken by hooks at the layers' inputs, which is what an HF
`hidden_states` index means, instead of having transformers keep all layers. Logits are made for a few hundred
positions at a time, reduced to argmax and logsumexp, and forgotten. Rows of one batch are padded on the right and run
without a mask: in a causal model a token never sees what stands to its right, so the padding changes nothing and
attention keeps its fastest path; the padded positions are cut off before the head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eyrie.errors import InputError, MissingError
from eyrie.shards.aux import AuxLayers
from eyrie.shards.hidden import TORCH, HiddenRow
from eyrie.target.packed import PackedLinear

if TYPE_CHECKING:
    from eyrie.capture.engine import Settings
    from eyrie.target import TargetReceipt

LOGITS_BYTES = 16 << 20  # of the float32 logits that exist at any time: few enough for a CPU's cache
PROBE_TOKENS = 12


class TransformersEngine:
    """`model` is a causal model in evaluation mode; `aux` its three layers; `store_dtype` what states come back in.

    Raises InputError when the model does not do what capture assumes; see `_probe`.
    """

    def __init__(self, model: nn.Module, aux: AuxLayers, store_dtype: str) -> None:
        self.model = model.eval()
        self.aux = aux
        self.store_dtype = TORCH[store_dtype]
        self.device = next(model.parameters()).device
        self.decoder = _decoder(model)
        if len(self.decoder.layers) != aux.layers:
            raise InputError(f"the target has {len(self.decoder.layers)} layers, not {aux.layers}; rebuild it with"
                             " `snakemake target`")  # fmt: skip
        head = model.get_output_embeddings()
        self.vocab_size = head.weight.shape[0]
        self.logits = _head(head.weight.detach().float(), getattr(head, "bias", None))
        self._caught: dict[int, Tensor] = {}
        self._hooks = [
            self.decoder.layers[index].register_forward_pre_hook(self._catch(index), with_kwargs=True)
            for index in aux.hf
        ]
        self._probe()

    @classmethod
    def load(cls, settings: Settings, receipt: TargetReceipt, device: str) -> TransformersEngine:
        """Open the prepared target in the settings' computing type."""
        from eyrie.target import load_model

        model = load_model(receipt, settings.dtype, settings.trust_remote_code)
        return cls(model.to(device), settings.aux, settings.store_dtype)

    def _catch(self, index: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._caught[index] = args[0] if args else kwargs["hidden_states"]

        return hook

    @torch.inference_mode()
    def _forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Aux states [B, N, 3H] and final state [B, N, H] of token ids [B, N], in the computing type."""
        self._caught.clear()
        final = self.decoder(input_ids=ids, use_cache=False).last_hidden_state
        aux = torch.cat([self._caught[index] for index in self.aux.hf], dim=-1)
        self._caught.clear()
        return aux, final

    @torch.inference_mode()
    def capture(self, rows: Sequence[np.ndarray], length: int) -> Iterator[HiddenRow]:
        """See `CaptureEngine.capture`."""
        ids = torch.zeros(len(rows), length, dtype=torch.int64)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.from_numpy(np.asarray(row, np.int64))
        aux, final = self._forward(ids.to(self.device))
        lengths = [len(row) for row in rows]
        real = torch.cat([final[i, :count] for i, count in enumerate(lengths)])  # [sum T, H]: no padding in the head
        argmax, logsumexp = self.reduce_logits(real)
        aux = torch.cat([aux[i, :count] for i, count in enumerate(lengths)]).to(self.store_dtype).cpu()
        real, argmax, logsumexp = real.to(self.store_dtype).cpu(), argmax.cpu(), logsumexp.cpu()
        parts = (aux.split(lengths), real.split(lengths), argmax.split(lengths), logsumexp.split(lengths))
        return (HiddenRow(*row) for row in zip(*parts, strict=True))

    @torch.inference_mode()
    def reduce_logits(self, final: Tensor) -> tuple[Tensor, Tensor]:
        """argmax int32 [N] and logsumexp float32 [N] of the head on final states [N, H], in float32."""
        argmax = torch.empty(len(final), dtype=torch.int32, device=final.device)
        logsumexp = torch.empty(len(final), dtype=torch.float32, device=final.device)
        step = max(1, LOGITS_BYTES // (4 * self.vocab_size))
        for at in range(0, len(final), step):
            part = slice(at, at + step)
            logits = self.logits(final[part].float())
            top, argmax[part] = logits.max(dim=-1)
            logsumexp[part] = logits.sub_(top[:, None]).exp_().sum(dim=-1).log_().add_(top)
        return argmax, logsumexp

    @torch.inference_mode()
    def _probe(self) -> None:
        """Hold a short pass against what transformers itself reports: wrong layers, a final state before the norm or
        logits that are scaled after the head raise no error anywhere else and only cost acceptance."""
        count = min(PROBE_TOKENS, self.vocab_size)
        ids = torch.arange(count, device=self.device)[None]
        aux, final = self._forward(ids)
        whole = self.model(input_ids=ids, use_cache=False, output_hidden_states=True)
        states = whole.hidden_states
        if len(states) != self.aux.layers + 1:
            raise InputError(f"the target reports {len(states)} hidden states for {self.aux.layers} layers")
        expected = {"aux states": (aux, torch.cat([states[index] for index in self.aux.hf], dim=-1)),
                    "final state": (final, states[-1])}  # fmt: skip
        for name, (found, wanted) in expected.items():
            if not torch.allclose(found.float(), wanted.float(), rtol=1e-3, atol=1e-3 * float(wanted.abs().max())):
                raise InputError(f"the target's {name} differ from transformers' hidden_states; it cannot be captured")
        logits = self.logits(final.float())
        reported = whole.logits.float()
        tolerance = 1e-4 if final.dtype == torch.float32 else 3e-2
        if not torch.allclose(logits, reported, rtol=tolerance, atol=tolerance * float(reported.abs().max())):
            raise InputError(
                "the target's logits are not its head on the final state (scaled or capped?); no engine that serves "
                "EAGLE-3 drafters could use them"
            )

    def close(self) -> None:
        """Take the hooks out of the model and let go of it."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        del self.model, self.decoder, self.logits


def _head(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    """The head `[V, H]` in float32 as a function of states `[N, H]`."""
    if weight.device.type == "cpu" and bias is None:
        return PackedLinear(weight)
    wide = None if bias is None else bias.detach().float()
    return lambda states: F.linear(states, weight, wide)


def _decoder(model: nn.Module) -> nn.Module:
    """The stack of decoder layers with the final norm behind it, inside wrappers for images and the like."""
    found = model.get_decoder() if hasattr(model, "get_decoder") else model
    for name in ("language_model", "model", "decoder"):
        if hasattr(found, "layers"):
            break
        found = getattr(found, name, found)
    if not isinstance(getattr(found, "layers", None), nn.ModuleList):
        raise MissingError(f"capture.engine=transformers finds no list of decoder layers in {type(model).__name__}")
    return found
