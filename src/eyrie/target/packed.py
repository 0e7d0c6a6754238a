"""A linear layer whose weight is packed once for oneDNN: on a CPU, up to twice as fast as a plain product."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

PACK_ROWS = 32  # the row count that weight packing is tuned for; others work as well


class PackedLinear:
    """`x @ weight.T` for a weight [out, in] without bias, packed once for oneDNN; plain where oneDNN is missing."""

    def __init__(self, weight: Tensor) -> None:
        self.out_features, self.in_features = weight.shape
        self.packed = bool(torch.backends.mkldnn.is_available()) and weight.dtype == torch.float32
        weight = weight.contiguous()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, PACK_ROWS) if self.packed else weight

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]"""
        if not self.packed:
            return F.linear(x, self.weight)
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, None, "none", [], "")

    def silu(self, x: Tensor) -> Tensor:
        """`silu(x @ weight.T)`"""
        if not self.packed:
            return F.silu(F.linear(x, self.weight))
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, None, "swish", [], "")

    def times(self, x: Tensor, other: Tensor) -> Tensor:
        """`(x @ weight.T) * other`"""
        if not self.packed:
            return F.linear(x, self.weight) * other
        return torch.ops.mkldnn._linear_pointwise.binary(x, other, self.weight, None, "mul")

    def plus(self, x: Tensor, other: Tensor) -> Tensor:
        """`x @ weight.T + other`"""
        if not self.packed:
            return F.linear(x, self.weight) + other
        return torch.ops.mkldnn._linear_pointwise.binary(x, other, self.weight, None, "add")
