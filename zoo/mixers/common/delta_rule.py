"""The gated delta rule: token by token, and in chunks (arXiv:2406.06484, arXiv:2412.06464).

    S <- exp(g_t) S;   S <- S + k_t u_t',   u_t = beta_t (v_t - S' k_t);   o_t = S' q_t

S [K, V] is 0 at the start of a document. g_t is a number, or one for each channel of K.

Shapes: B batch, G key heads, R value heads of a key head, N tokens, T chunks of C tokens, K and V
channels of keys and values. The decay has one channel or K of them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.attention.linear_sums import make_chunk_masks

CHUNK = 64  # tokens of a chunk
BLOCK = 16  # tokens whose pairs are decayed by channel at once


@dataclass(frozen=True)
class DeltaInputs:
    """The inputs of the rule, 0 for padding, in at least float32.

    Attributes:
        q: Queries [B, G, 1, N, K].
        k: Keys [B, G, 1, N, K].
        v: Values [B, G, R, N, V].
        beta: Strengths of the updates [B, G, R, N, 1].
        g: Logarithms of the decays [B, G, R, N, 1|K], at most 0.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor
    g: Tensor

    def make_state(self) -> Tensor:
        """Return the state before the first token, [B, G, R, K, V]."""
        batch, groups, repeats, _, width = self.v.shape
        return self.v.new_zeros(batch, groups, repeats, self.k.shape[-1], width)


def scan_tokens(
    inputs: DeltaInputs, segment: Tensor | None, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Apply the rule token by token.

    Args:
        inputs: The inputs.
        segment: Number of the document of each token, int [1|B, N]. Those of number 0 continue the
            state. None: all do.
        state: The state before the first token [1|B, G, R, K, V]; None: 0.

    Returns:
        The outputs [B, G, R, N, V], and the state after the last token.
    """
    state = inputs.make_state() if state is None else state
    starts = None
    if segment is not None:
        starts = segment.diff(dim=1, prepend=segment.new_zeros(len(segment), 1)) > 0
    outputs = []
    for t in range(inputs.q.shape[-2]):
        token = slice(t, t + 1)
        q, k = inputs.q[..., token, :], inputs.k[..., token, :]
        if starts is not None:
            state = state.masked_fill(starts[:, None, None, token, None], 0)
        state = state * inputs.g[..., token, :].exp().mT
        update = inputs.beta[..., token, :] * (inputs.v[..., token, :] - k @ state)
        state = state + k.mT * update
        outputs.append(q @ state)
    return torch.cat(outputs, dim=-2), state


def scan_chunks(
    inputs: DeltaInputs, segment: Tensor | None, state: Tensor | None, size: int = CHUNK
) -> tuple[Tensor, Tensor]:
    """Apply the rule chunk by chunk: pairs within chunks, a state between them.

    Within a chunk, updates u solve (1 + A) u = beta (v - S' k'). A_ij is beta_i k_i.k_j, decayed
    from j to i, for j < i in the document of i; k' is k decayed from the start of the chunk. Time
    and memory are linear in the number of tokens. The arguments and results are those of
    `scan_tokens`.
    """
    count = inputs.q.shape[-2]
    size = min(size, count)
    if segment is None:
        segment = torch.zeros(1, count, dtype=torch.long, device=inputs.q.device)
    masks = make_chunk_masks(segment, segment.new_zeros(1), size)
    missing = -count % size
    q, k, v, beta, g = (
        F.pad(getattr(inputs, field.name), (0, 0, 0, missing)).unflatten(-2, (-1, size))
        for field in fields(inputs)
    )  # [B, G, R, T, C, ..]
    total = g.cumsum(-2)  # decay from the start of the chunk

    # The updates of each chunk, apart from what the state before it contributes.
    products = (beta * decay_products(k, k, total)).masked_fill(~masks.pairs, 0)
    from_start = k * total.exp() * masks.first
    targets = torch.cat([beta * v, beta * from_start], dim=-1)
    solved = torch.linalg.solve_triangular(products, targets, upper=False, unitriangular=True)
    updates, corrections = solved.split([v.shape[-1], k.shape[-1]], dim=-1)

    # The state before each chunk, one after the other.
    to_end = (k * (total[..., -1:, :] - total).exp() * masks.last).mT  # [B, G, R, T, K, C]
    kept = (total[..., -1:, :].exp() * masks.kept).mT  # [B, G, R, T, 1|K, 1]
    state = inputs.make_state() if state is None else state
    states, final = [], []
    for chunk in range(q.shape[3]):
        states.append(state)
        final.append(updates[:, :, :, chunk] - corrections[:, :, :, chunk] @ state)
        state = kept[:, :, :, chunk] * state + to_end[:, :, :, chunk] @ final[-1]

    weights = decay_products(q, k, total).masked_fill(~masks.pairs, 0)
    out = weights @ torch.stack(final, dim=3)
    out = out + (q * total.exp() * masks.first) @ torch.stack(torch.broadcast_tensors(*states), 3)
    return out.flatten(-3, -2)[..., :count, :], state


def decay_products(left: Tensor, right: Tensor, total: Tensor) -> Tensor:
    """Compute sum_c left_ic right_jc exp(total_ic - total_jc) for j <= i, and 0 for later j.

    Only differences that are at most 0 are exponentiated: exp(-total) itself would overflow.

    Args:
        left: [.., C, K].
        right: [.., C, K].
        total: Sums of the logarithms of decays [.., C, 1|K], which never increase.

    Returns:
        [.., C, C].
    """
    count = left.shape[-2]
    later = torch.ones(count, count, dtype=torch.bool, device=left.device).triu(1)
    if total.shape[-1] == 1:
        return (left @ right.mT) * (total - total.mT).masked_fill(later, -torch.inf).exp()

    # Pairs of a block have a difference for each channel. Before the block, the decay is a product
    # of two factors, up to its first token and from there on.
    rows = []
    for start in range(0, count, BLOCK):
        stop = min(start + BLOCK, count)
        near, mask = total[..., start:stop, :], later[start:stop, start:stop, None]
        decay = (near[..., :, None, :] - near[..., None, :, :]).masked_fill(mask, -torch.inf).exp()
        pairs = left[..., start:stop, None, :] * right[..., None, start:stop, :]
        parts = [(pairs * decay).sum(-1)]
        if start:
            edge = total[..., start - 1 : start, :]
            after = left[..., start:stop, :] * (near - edge).exp()
            before = right[..., :start, :] * (edge - total[..., :start, :]).exp()
            parts.insert(0, after @ before.mT)
        rows.append(F.pad(torch.cat(parts, dim=-1), (0, count - stop)))
    return torch.cat(rows, dim=-2)
