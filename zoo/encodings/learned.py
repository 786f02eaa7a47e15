"""Learned position embeddings (Gehring et al. 2017, arXiv:1705.03122; ViT, arXiv:2010.11929)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

import torch
from torch import Tensor, nn

from zoo.attention import AttentionCall, Dims, Encoding, Tokens
from zoo.encodings.common.panels import Panels, row_norm_panel
from zoo.encodings.common.position_tables import (
    NORMS_CAPTION,
    check_range,
    read_rows,
    resize_antialiased,
    resize_table,
)
from zoo.errors import OptionError
from zoo.options import Between
from zoo.registry import register


@register
class Learned(Encoding):
    """x + table[p]

    `table` has a row per position in training, row-major over several axes. A grid of another size
    reads it bicubically, as images are resized (a = -0.75, no antialiasing), or with `antialias` as
    timm resizes it (a = -0.5). A text longer than the table is refused, unless the table is
    resampled to `stretch` times its length. `shared: false` adds a separate table to the attention
    input of every layer (Al-Rfou et al. 2019, arXiv:1808.04444).

    Args:
        stretch: Factor of the table's length, to which it is resampled for longer texts.
        antialias: Whether a smaller grid reads the table with a filter, as timm does.
    """

    part = "input"
    axes = (1, 2, 3)
    adds_to_input = True

    def __init__(
        self, dims: Dims, *, stretch: Annotated[float, Between(1)] = 1.0, antialias: bool = False
    ) -> None:
        super().__init__(dims)
        if antialias and dims.axes != 2:
            message = f"antialias is for grids of 2 axes, not {dims.axes}"
            raise OptionError("antialias", f"{message}; leave it out")
        if antialias:
            self.no_export_reason = "it resizes its table to the size of each image"
            self.one_grid_reason = "antialias resizes the table once for all images of a batch"
        self.antialias = antialias
        if stretch != 1 and dims.axes > 1:
            message = f"stretch {stretch:g} has no effect on a grid, which is resampled"
            raise OptionError("stretch", f"{message} to any size already; leave it out")
        self.stretch = stretch
        table = nn.init.normal_(torch.empty(dims.tokens, dims.dim), std=0.02)
        self.table = nn.Parameter(table)  # [tokens, D]

    def check_options(self) -> None:
        # A table for each layer adds to the attention input of its layer only.
        self.adds_to_input = self.shared

    def check_positions(self, pos: Tensor, has_position: Tensor | None = None) -> None:
        # A grid repeats the rows at its edges.
        if self.dims.axes == 1:
            check_range(pos, round(self.dims.tokens * self.stretch), has_position)

    def embed(self, tokens: Tokens) -> Tokens:
        return self._add_rows(tokens) if self.shared else tokens

    def prepare(self, tokens: Tokens) -> Tokens:
        return tokens if self.shared else self._add_rows(tokens)

    def extrapolations(self, factors: tuple[float, ...]) -> Mapping[str, Mapping[str, Any]]:
        if self.dims.axes == 1:
            return {"resample": {"stretch": factors[0]}}
        # A grid is always resampled to positions seen in training: both rules need no option.
        return {"resample": {}, "linear": {}}

    def adapt_parameter(self, name: str, value: Tensor, source: Self) -> Tensor | None:
        return resize_table(value, source.dims.sizes, self.dims.sizes, self.table)

    def panels(self, call: AttentionCall) -> Panels:
        title = "Norms of table rows"
        return [row_norm_panel(title, self.table, self.dims.sizes, NORMS_CAPTION)]

    def _add_rows(self, tokens: Tokens) -> Tokens:
        self.check_positions(tokens.pos, tokens.has_position)
        table: Tensor = self.table
        sizes = self.dims.sizes
        if self.antialias:
            table, sizes = resize_antialiased(table, tokens, sizes)
        rows = read_rows(table, tokens, sizes, self.stretch)
        return tokens.replace(x=tokens.x + rows.to(tokens.x.dtype))
