"""Biases summed from key to query (path-integral GRAPE; Zhang et al. 2025, arXiv:2512.07805)."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attention import AttentionCall, BlockBias, Dims, Encoding, Span, Tokens, disable_autocast
from zoo.attention.backends.reference import attention_mask
from zoo.encodings.alibi import head_slopes
from zoo.encodings.common.layers import apply_linear
from zoo.encodings.common.panels import Panels, head_panel, mean_over_pairs
from zoo.encodings.common.rotation import cos_sin, rotate_pairs
from zoo.encodings.common.suffix_sums import sum_suffixes
from zoo.errors import OptionError
from zoo.options import Between
from zoo.registry import register


@register
class GRAPEAP(Encoding):
    """scores + m_h sum_{l=j+1..i} log sigmoid(P_i . R_l P'_l / size), P = path(x), P' = P / rms(P)

    m_h are the slopes of alibi. R_l rotates the `size` channels of P' by one radian per position.
    As in the published code it rotates only the key's side, so the bias is not shift-invariant. If
    P does not depend on the query, the bias is that of fox; if P is 0, that of alibi with slopes
    m_h log 2. Sums follow the order of tokens.

    Args:
        size: Channels of P.
    """

    part = "gates"
    shared, causal_only, identity_at_zero, reads_states = False, True, True, True

    def __init__(self, dims: Dims, *, size: Annotated[int, Between(2)] = 8) -> None:
        super().__init__(dims)
        if size % 2:
            raise OptionError("size", f"size {size} is not even")
        self.size = size
        self.path = nn.Linear(dims.dim, dims.heads * size, bias=False)
        nn.init.normal_(self.path.weight, std=0.5 * dims.dim**-0.5)

    def prepare(self, tokens: Tokens) -> Tokens:
        path = apply_linear(self.path, tokens.x).unflatten(-1, (self.dims.heads, -1))
        return tokens.with_per_token(path=path)  # [B, N, H, size]

    def modify(self, call: AttentionCall) -> AttentionCall:
        path, edges = self._project(call)

        # A block of queries at a time, since a table of all pairs would exceed any memory.
        def sum_steps(span: Span) -> Tensor:
            logs = self._log_gates(call, path, edges, span)
            # Sums run from the query back to the key, so that they are small, and exact, for near
            # keys.
            return sum_suffixes(logs) - logs  # [B, H, n, m]

        return call.add_bias(BlockBias(sum_steps))

    def panels(self, call: AttentionCall) -> Panels:
        logs = self._log_gates(call, *self._project(call), call.full_span)
        steps = -mean_over_pairs(logs, attention_mask(call))
        caption = "Mean penalty of a token between key and query: heads near 0 attend far."
        yield head_panel("Steps of paths", "score per token", steps, caption)

    def _project(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        """Return P of the queries [B, H, N, size], and R P' / size of the keys [B, H, M, size]."""
        with disable_autocast(call.q.device):
            path = call.keys.per_token["path"].transpose(1, 2)  # [B, H, M, size]
            angles = call.keys.pos[:, None].expand(-1, -1, -1, self.size // 2)
            edges = rotate_pairs(F.rms_norm(path, (self.size,), eps=1e-6), cos_sin(angles))
            return call.select_queries(path), edges / self.size

    def _log_gates(self, call: AttentionCall, path: Tensor, edges: Tensor, span: Span) -> Tensor:
        """Return what token j adds to the scores of query i for all keys before j, [B, H, n, m]."""
        with disable_autocast(call.q.device):
            logs = F.logsigmoid(span.slice_queries(path) @ span.slice_keys(edges).mT)
            slopes = head_slopes(self.dims.heads, logs)[:, None, None]
            past = call.evaluate(lambda b, h, i, j: j <= call.key_index(i), span)
            logs = logs * slopes * past
            if call.keys.valid is None:
                return logs
            # Padding adds nothing to a path that leads over it.
            return logs.masked_fill(~call.keys.valid[:, None, None, span.keys], 0)
