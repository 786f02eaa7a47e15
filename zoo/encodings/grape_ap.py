"""Biases summed along the path from query to key (additive GRAPE by path integrals; Zhang et al. 2025, arXiv:2512.07805)."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attention import AttentionCall, Dims, Encoding, Tokens, bias_from_table, disable_autocast
from zoo.attention.backends.reference import attention_mask
from zoo.encodings.alibi import head_slopes
from zoo.encodings.common.layers import apply_linear
from zoo.encodings.common.panels import Panels, head_panel, mean_over_pairs
from zoo.encodings.common.rotation import cos_sin, rotate_pairs
from zoo.errors import OptionError
from zoo.registry import Between, register


@register
class GRAPEAP(Encoding):
    """scores + m_h sum_{l=j+1..i} log sigmoid(P_i . R_l P'_l / size), P = path(x), P' = P / rms(P), m_h the slopes of alibi

    R_l turns the `size` channels of P' by one radian per place: as in the published code, at the key's side alone, so that
    the bias is not relative. Where P does not depend on the query it is fox, where P is 0 alibi of slopes m_h log 2.
    The sums go by the order of tokens.
    """

    shared, causal_only, identity_at_zero = False, True, True

    def __init__(self, dims: Dims, *, size: Annotated[int, Between(2)] = 8) -> None:
        super().__init__(dims)
        if size % 2:
            raise OptionError("size", f"size {size} is not even")
        self.size = size
        self.path = nn.Linear(dims.dim, dims.heads * size, bias=False)
        nn.init.normal_(self.path.weight, std=0.5 * dims.dim**-0.5)

    def prepare(self, tokens: Tokens) -> Tokens:
        return tokens.with_per_token(
            path=apply_linear(self.path, tokens.x).unflatten(-1, (self.dims.heads, -1))
        )  # [B, N, H, size]

    def modify(self, call: AttentionCall) -> AttentionCall:
        sums = self._sums(call)  # [B, H, N, M]
        return call.add_bias(bias_from_table(sums))

    def panels(self, call: AttentionCall) -> Panels:
        told = "What a token on the way takes off a score, on average: heads near 0 look far."
        yield head_panel(
            "Steps of paths",
            "score per token",
            -mean_over_pairs(self._logs(call), attention_mask(call)),
            told,
        )

    def _sums(self, call: AttentionCall) -> Tensor:
        logs = self._logs(call)
        return logs.flip(-1).cumsum(-1).flip(-1) - logs  # nearer keys first: small where it matters

    def _logs(self, call: AttentionCall) -> Tensor:
        """What each token up to the query adds to the scores of those before it, [B, H, N, M]."""
        with disable_autocast(call.q.device):
            path = call.keys.per_token["path"].transpose(1, 2)  # [B, H, M, size]
            angles = call.keys.pos[:, None].expand(-1, -1, -1, self.size // 2)
            edges = rotate_pairs(F.rms_norm(path, (self.size,), eps=1e-6), cos_sin(angles))
            logs = F.logsigmoid(call.select_queries(path) @ edges.mT / self.size)
            slopes = head_slopes(self.dims.heads, logs)[:, None, None]
            return logs * slopes * call.evaluate(lambda b, h, i, j: j <= call.key_index(i))
