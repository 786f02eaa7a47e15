"""A causal depthwise convolution that ends with the document."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from zoo.attention.mixer import MixerStream
from zoo.attention.tokens import concat, take_tokens


class CausalConvolution(nn.Module):
    """y_t = sum_i w_i x_(t - W + 1 + i) for each channel, over tokens of the document of t.

    Padding is passed over. The initial weights are those of `nn.Conv1d`, U(-W^-1/2, W^-1/2).

    Attributes:
        weight: [E, 1, W].
    """

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.width = width
        bound = width**-0.5
        self.weight = nn.Parameter(torch.empty(channels, 1, width).uniform_(-bound, bound))

    def forward(self, x: Tensor, stream: MixerStream, past: Tensor | None) -> tuple[Tensor, Tensor]:
        """Convolve the channels of a stream.

        Args:
            x: [B, N, E], 0 for padding.
            stream: The tokens of x.
            past: The last inputs of earlier calls [1|B, W - 1, E]; None: there were none.

        Returns:
            The outputs [B, N, E], and the last W - 1 inputs of the last document, 0 where there are
            fewer.
        """
        count, kept = x.shape[1], self.width - 1
        if past is None:
            past = x.new_zeros(1, kept, x.shape[2])
        joined = concat(past, x)  # [B, W - 1 + N, E]
        segment = stream.segment
        if segment is not None:
            # The past belongs to the document that segment 0 continues.
            segment = torch.cat([segment.new_zeros(len(segment), kept), segment], dim=1)

        out = x * self.weight[:, 0, -1]
        for lag in range(1, self.width):
            first = kept - lag
            earlier = joined[:, first : first + count]
            if segment is not None:
                is_other = segment[:, first : first + count] != segment[:, kept:]
                earlier = earlier.masked_fill(is_other[..., None], 0)
            out = out + earlier * self.weight[:, 0, kept - lag]
        return out, self._keep_last(joined, segment, stream.is_real)

    def _keep_last(self, joined: Tensor, segment: Tensor | None, is_real: Tensor | None) -> Tensor:
        """Return the last W - 1 inputs before padding, 0 for those of earlier documents."""
        kept = self.width - 1
        if segment is None:
            return joined[:, joined.shape[1] - kept :]
        rows = torch.arange(kept, device=joined.device)[None]
        count = joined.shape[1] - kept
        # Padding comes last, so the last inputs end where it begins.
        rows = rows + (count if is_real is None else is_real.sum(1, keepdim=True))
        last = take_tokens(joined, rows)
        is_other = take_tokens(segment, rows) != segment[:, -1:]
        return last.masked_fill(is_other[..., None], 0)
