"""The state of a layer without keys between calls: sums of linear attention, states of mixers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from zoo.attention.tokens import select_rows


@dataclass(frozen=True)
class LayerState:
    """The state of a layer after the last token that is no padding.

    Attributes:
        values: Tensors [1|B, ...] by name.
        document: Number of the document of that token, int [1|B]; -1 if there was none.
    """

    values: Mapping[str, Tensor]
    document: Tensor

    def select_rows(self, rows: Tensor) -> LayerState:
        """Return the state of other rows of the batch, int [b]."""
        values = {name: select_rows(value, rows) for name, value in self.values.items()}
        return LayerState(values, select_rows(self.document, rows))
