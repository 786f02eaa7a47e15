"""Sums along a text whose documents are contiguous: within chunks pair by pair, between them as one matrix."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


def continued(document: Tensor, before: Tensor | None) -> Tensor:
    """Documents [1|B, N] where padding belongs to the one before it, so that what follows it goes on."""
    slots = torch.arange(document.shape[1], device=document.device)
    last = torch.where(document >= 0, slots, -1).cummax(1).values
    earlier = document.new_full((1,), -1) if before is None else before
    return torch.where(last >= 0, document.gather(1, last.clamp(min=0)), earlier[:, None])


@dataclass(frozen=True)
class Runs:
    """Who belongs together, of T chunks of C tokens whose documents are contiguous."""

    size: int  # C
    pairs: Tensor  # bool [1|B, 1, 1, T, C, C] of one document, the key not after the query
    first: Tensor  # bool [1|B, 1, 1, T, C, 1] of the document that the chunk before ended with
    last: Tensor  # bool [1|B, 1, 1, T, C, 1] of the document that its chunk ends with
    kept: Tensor  # bool [1|B, 1, 1, T, 1, 1] whether a chunk ends with the document that the one before ended with


def runs_of(document: Tensor, before: Tensor, size: int, least: int = 0) -> Runs:
    """Of documents [1|B, N] after a last one [1|B]; keys are at least `least` tokens before their queries."""
    document = document.expand(max(len(document), len(before)), -1)
    missing = document[:, -1:].expand(-1, -document.shape[1] % size)
    document = torch.cat([document, missing], dim=1).unflatten(1, (-1, size))  # [1|B, T, C]
    last = document[:, :, -1:]  # [1|B, T, 1]
    earlier = torch.cat([before.expand(len(last))[:, None, None], last[:, :-1]], dim=1)
    pairs = (document[..., None] == document[:, :, None]).tril(-least)
    found = pairs, (document == earlier)[..., None], (document == last)[..., None], (last == earlier)[..., None]
    return Runs(size, *(one[:, None, None] for one in found))


def running(q: Tensor, k: Tensor, v: Tensor, runs: Runs, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """sum_n (q_i.k_n) v_n over the keys of each query's document so far, and sum_n k_n v_n^T of the last document."""
    count, missing = q.shape[-2], -q.shape[-2] % runs.size
    q, k, v = (F.pad(one, (0, 0, 0, missing)).unflatten(-2, (-1, runs.size)) for one in (q, k, v))  # [.., T, C, ..]
    added = (k * runs.last).mT @ v  # [B, G, 1, T, K, V]
    state, states = torch.zeros_like(added[:, :, :, 0]) if state is None else state, []
    for kept, new in zip(runs.kept.unbind(3), added.unbind(3), strict=True):
        states.append(state)
        state = torch.where(kept, state, 0) + new
    within = (q @ k.mT).masked_fill(~runs.pairs, 0) @ v
    out = within + (q * runs.first) @ torch.stack(states, dim=3)
    return out.flatten(-3, -2)[..., :count, :], state
