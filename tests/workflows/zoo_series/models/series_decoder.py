"""Transformer for series of vectors."""

from typing import Unpack

import torch
from torch import Tensor, nn
from zoo_series.spec import SeriesSpec

from zoo.attention.tokens import Tokens
from zoo.models.transformer import Transformer, TransformerOptions
from zoo.registry import register


@register
class SeriesDecoder(Transformer):
    """Vectors [B, N, channels] -> the next vector [B, channels], from the last token."""

    def __init__(self, spec: SeriesSpec, **options: Unpack[TransformerOptions]) -> None:
        super().__init__(**options)
        self.embed = nn.Linear(spec.channels, options["dim"])
        self.add_blocks(axes=1, length=spec.length, causal=True)
        self.head = nn.Linear(options["dim"], spec.channels)

    def forward(self, x: Tensor) -> Tensor:
        """Predict the vectors that follow series [B, N, channels]."""
        places = torch.arange(x.shape[1], device=x.device)[:, None]
        states = self.run_blocks(Tokens.at(self.embed(x), places, ordered=True)).x
        return self.head(states[:, -1])
