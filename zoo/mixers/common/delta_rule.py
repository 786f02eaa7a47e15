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

from zoo.attention.linear_sums import ChunkMasks, make_chunk_masks

CHUNK = 64  # tokens of a chunk
CHANNEL_CHUNK = 32  # with a decay by channel, whose products of pairs take most of the time


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
    inputs: DeltaInputs, segment: Tensor | None, state: Tensor | None, size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Apply the rule chunk by chunk: pairs within chunks, a state between them.

    Within a chunk, updates u solve (1 + A) u = beta (v - S' k'). A_ij is beta_i k_i.k_j, decayed
    from j to i, for j < i in the document of i; k' is k decayed from the start of the chunk. Time
    and memory are linear in the number of tokens. The arguments and results are those of
    `scan_tokens`; `size` is the number of tokens of a chunk.
    """
    if size is None:
        size = CHUNK if inputs.g.shape[-1] == 1 else CHANNEL_CHUNK
    count = inputs.q.shape[-2]
    # the smallest power of two that holds all tokens, for the halves of `decay_by_channel`
    size = min(size, 1 << (count - 1).bit_length())
    masks = None if segment is None else make_chunk_masks(segment, segment.new_zeros(1), size)
    missing = -count % size
    parts = [getattr(inputs, field.name) for field in fields(inputs)]
    if missing:
        parts = [F.pad(part, (0, 0, 0, missing)) for part in parts]
    q, k, v, beta, g = (part.unflatten(-2, (-1, size)) for part in parts)  # [B, G, R, T, C, ..]
    # By head the decays of pairs are numbers; by channel they must enter the products.
    decayed = (decay_by_head if g.shape[-1] == 1 else decay_by_channel)(q, k, g)
    if masks is not None:
        decayed = decayed.separate(masks)

    # The updates of each chunk, apart from what the state before it contributes.
    targets = torch.cat([beta * v, beta * decayed.keys], dim=-1)
    solved = torch.linalg.solve_triangular(
        beta * decayed.by_keys, targets, upper=False, unitriangular=True
    )
    updates, corrections = solved.split([v.shape[-1], k.shape[-1]], dim=-1)

    # The state before each chunk, one after the other.
    to_end = decayed.keys_to_end.mT  # [B, G, R, T, K, C]
    kept = decayed.whole.mT  # [B, G, R, T, 1|K, 1]
    state = inputs.make_state() if state is None else state
    states, final = [], []
    # unbound at once: the gradient of an index would fill a tensor of all chunks for each
    chunks = zip(*(part.unbind(3) for part in (updates, corrections, kept, to_end)), strict=True)
    for update, correction, factor, keys in chunks:
        states.append(state)
        final.append(update - correction @ state)
        state = factor * state + keys @ final[-1]

    out = decayed.by_queries @ torch.stack(final, dim=3)
    out = out + decayed.queries @ torch.stack(torch.broadcast_tensors(*states), 3)
    return out.flatten(-3, -2)[..., :count, :], state


@dataclass(frozen=True)
class DecayedChunks:
    """Keys and queries of chunks with their decays, of which none exceeds 1.

    Attributes:
        by_keys: Products of keys i with keys j, decayed from j to i, for j <= i [.., C, C].
        by_queries: Those of queries i with keys j.
        keys: Keys, decayed from the start of the chunk [.., C, K].
        queries: Queries, decayed in the same way.
        keys_to_end: Keys, decayed to the end of the chunk [.., C, K].
        whole: Decay of the chunk [.., 1, 1|K].
    """

    by_keys: Tensor
    by_queries: Tensor
    keys: Tensor
    queries: Tensor
    keys_to_end: Tensor
    whole: Tensor

    def separate(self, masks: ChunkMasks) -> DecayedChunks:
        """Return them without what passes from one document to another."""
        return DecayedChunks(
            self.by_keys.masked_fill(~masks.pairs, 0),
            self.by_queries.masked_fill(~masks.pairs, 0),
            self.keys * masks.first,
            self.queries * masks.first,
            self.keys_to_end * masks.last,
            self.whole * masks.kept,
        )


def decay_by_head(q: Tensor, k: Tensor, g: Tensor) -> DecayedChunks:
    """Apply decays g [.., C, 1] to queries and keys [.., C, K] of chunks."""
    count, total = k.shape[-2], g.cumsum(-2)  # decay from the start of the chunk
    later = torch.ones(count, count, dtype=torch.bool, device=k.device).triu(1)
    decay = (total - total.mT).masked_fill(later, -torch.inf).exp()
    return DecayedChunks(
        (k @ k.mT) * decay,
        (q @ k.mT) * decay,
        k * total.exp(),
        q * total.exp(),
        k * (total[..., -1:, :] - total).exp(),
        total[..., -1:, :].exp(),
    )


def decay_by_channel(q: Tensor, k: Tensor, g: Tensor) -> DecayedChunks:
    """Apply decays g [.., C, K] to queries and keys [.., C, K] of chunks; C is a power of two.

    exp(-total) would overflow, and a decay for each pair and channel would take memory. So chunks
    grow from blocks of one token, which are joined in pairs:

        first half    [ block     0   ]   pairs: queries decayed from the start of the second half,
        second half   [ pairs   block ]          times keys decayed to the end of the first
    """
    q, k, step = q.expand(g.shape), k.expand(g.shape), g.exp()
    rows = torch.stack((k, q), dim=-2)[..., None, :]  # [.., blocks, 2, S, K], S = 1
    # a token has no decay to itself
    blocks = (rows * k[..., None, None, :]).sum(-1, keepdim=True)  # [.., blocks, 2, S, S]
    rows, columns = rows * step[..., None, None, :], k[..., None, :]
    whole = step[..., None, :]  # decay of each block [.., blocks, 1, K]
    while (size := columns.shape[-2]) < k.shape[-2]:
        first, second = rows.unflatten(-4, (-1, 2)).unbind(-4)
        first_keys, second_keys = columns.unflatten(-3, (-1, 2)).unbind(-3)
        first_whole, second_whole = whole.unflatten(-3, (-1, 2)).unbind(-3)
        upper, lower = blocks.unflatten(-4, (-1, 2)).unbind(-4)
        pairs = (second.flatten(-3, -2) @ first_keys.mT).unflatten(-2, (2, size))
        lower = torch.cat([pairs, lower], dim=-1)
        blocks = torch.cat([F.pad(upper, (0, size)), lower], dim=-2)
        rows = torch.cat([first, second * first_whole[..., None, :, :]], dim=-2)
        columns = torch.cat([first_keys * second_whole, second_keys], dim=-2)
        whole = first_whole * second_whole
    by_keys, by_queries = blocks.squeeze(-4).unbind(-3)
    keys, queries = rows.squeeze(-4).unbind(-3)
    return DecayedChunks(by_keys, by_queries, keys, queries, columns.squeeze(-3), whole.squeeze(-3))
