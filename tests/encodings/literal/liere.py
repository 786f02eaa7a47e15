"""LieRE: blocks rotate by exp(sum_a p_a (U_a - U_a^T)), U_a strict upper triangles."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.attention.encoding import Encoding


def liere(encoding: Encoding, h: int, p: Tensor, size: int) -> Tensor:
    generators, block = encoding.generators, encoding.block
    blocks = []
    for m in range(size // block):
        exponent = torch.zeros(block, block, dtype=p.dtype)
        for a in range(len(p)):
            numbers = iter(generators[a, h, m])
            upper = [
                [next(numbers) if c > r else p.new_zeros(()) for c in range(block)]
                for r in range(block)
            ]
            triangle = torch.stack([torch.stack(row) for row in upper])
            exponent = exponent + p[a] * (triangle - triangle.T)
        blocks.append(torch.linalg.matrix_exp(exponent))
    return torch.block_diag(*blocks, torch.eye(size % block, dtype=p.dtype))
