"""A learned vector per position added to the input (Gehring et al. 2017, arXiv:1705.03122; ViT, arXiv:2010.11929)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

import torch
from torch import Tensor, nn

from zoo.attention import AttentionCall, Dims, Encoding, Tokens
from zoo.encodings.common.learned_table import ROWS, read_rows, resize_table
from zoo.encodings.common.panels import Panels, row_norm_panel
from zoo.errors import OptionError
from zoo.registry import Between, register


@register
class Learned(Encoding):
    """x + table[p]

    `table` has a row per position of training, row-major over several axes. A grid of another size reads it bicubically
    at fractions of the grid, as images are resized (a = -0.75, no antialiasing); a text longer than the table is refused,
    unless it is read likewise over `stretch` times its length.
    `shared: false` adds a table of its own to the attention input of every layer (Al-Rfou et al. 2019, arXiv:1808.04444).
    """

    axes = (1, 2, 3)

    def __init__(self, dims: Dims, *, stretch: Annotated[float, Between(1)] = 1.0) -> None:
        super().__init__(dims)
        if stretch != 1 and dims.axes > 1:
            raise OptionError(
                "stretch",
                f"{stretch:g}: a grid of any size reads its table resampled already; leave it out",
            )
        self.stretch = stretch
        self.table = nn.Parameter(
            nn.init.normal_(torch.empty(dims.tokens, dims.dim), std=0.02)
        )  # [tokens, D]

    def embed(self, tokens: Tokens) -> Tokens:
        return self._added(tokens) if self.shared else tokens

    def prepare(self, tokens: Tokens) -> Tokens:
        return tokens if self.shared else self._added(tokens)

    def extrapolations(self, factors: tuple[float, ...]) -> Mapping[str, Mapping[str, Any]]:
        return {
            "resample": {"stretch": factors[0]} if self.dims.axes == 1 else {}
        }  # what a grid does anyway

    def adapt_parameter(self, name: str, value: Tensor, source: Self) -> Tensor | None:
        return resize_table(value, source.dims.sizes, self.dims.sizes, self.table)

    def panels(self, call: AttentionCall) -> Panels:
        return [row_norm_panel("Rows of the table", self.table, self.dims.sizes, ROWS)]

    def _added(self, tokens: Tokens) -> Tokens:
        found = read_rows(self.table, tokens, self.dims.sizes, self.stretch)
        return tokens.replace(x=tokens.x + found.to(tokens.x.dtype))
