"""Linear maps of states, fast for the lone tokens of decoding too."""

from __future__ import annotations

from math import gcd

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FEW, LARGE = 4, 2**16  # rows up to which, and weights from which, parts of a product are faster than the whole


class Projection(nn.Linear):
    """`nn.Linear` by `project`."""

    def forward(self, x: Tensor) -> Tensor:
        return project(x, self.weight, self.bias)


def project(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [.., I] times weight [O, I] transposed, plus bias [O]: `F.linear`, in parts where a few rows meet a large weight.

    MKL multiplies a matrix with one vector in one thread, and in less than half the speed at which memory can be read;
    as a batch of parts of the matrix, it reads with all threads. Only where no gradient is recorded.
    """
    parts = _parts(x, weight)
    if parts < 2:
        return F.linear(x, weight, bias)
    columns = x.reshape(1, -1, weight.shape[1]).expand(parts, -1, -1).mT  # [parts, I, rows]
    weight = weight.view(parts, -1, weight.shape[1])
    out = weight @ columns if bias is None else torch.baddbmm(bias.reshape(parts, -1, 1), weight, columns)
    return out.flatten(0, 1).mT.reshape(*x.shape[:-1], -1)


def _parts(x: Tensor, weight: Tensor) -> int:
    """In how many parts the product is fastest."""
    if torch.is_grad_enabled() or weight.numel() < LARGE or not 0 < x.numel() <= FEW * weight.shape[1]:
        return 1
    plain = (
        type(weight) in (Tensor, nn.Parameter) and weight.is_contiguous() and x.dtype == weight.dtype == torch.float32
    )
    if not plain or weight.device.type != "cpu" or torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling():
        return 1
    return gcd(len(weight), 2 * torch.get_num_threads()) if torch.backends.mkl.is_available() else 1
