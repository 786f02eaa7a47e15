"""Where windows lie in a stream of tokens. A window of N tokens takes N + 1: its targets are one token further on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Places(Protocol):
    """Where windows begin."""

    def __len__(self) -> int: ...

    def starts(self, indices: NDArray[Any]) -> NDArray[Any]: ...

    def asked(self, indices: NDArray[Any]) -> NDArray[Any]:
        """How many of the last targets of each window are asked."""
        ...


@dataclass(frozen=True)
class Tiles:
    """Windows side by side; what is left at the end is less than one."""

    length: int
    size: int

    def __len__(self) -> int:
        return (self.size - 1) // self.length

    def starts(self, indices: NDArray[Any]) -> NDArray[Any]:
        return indices * self.length

    def asked(self, indices: NDArray[Any]) -> NDArray[Any]:
        return np.full(len(indices), self.length)


@dataclass(frozen=True)
class Strides:
    """A window every `stride` tokens, the last moved back so that it is full: each target is asked once."""

    length: int
    size: int
    stride: int

    def __len__(self) -> int:
        return 1 - (self.length + 1 - self.size) // self.stride

    def starts(self, indices: NDArray[Any]) -> NDArray[Any]:
        return np.minimum(indices * self.stride, self.size - 1 - self.length)

    def asked(self, indices: NDArray[Any]) -> NDArray[Any]:
        return np.where(indices == 0, self.length, self.starts(indices) - (indices - 1) * self.stride)


@dataclass(frozen=True)
class Streams:
    """Rows that go on from batch to batch, each through its own stretch of the tokens."""

    length: int
    size: int
    rows: int

    def __len__(self) -> int:
        return (self.size - 1) // (self.rows * self.length) * self.rows

    def starts(self, indices: NDArray[Any]) -> NDArray[Any]:
        step, row = np.divmod(indices, self.rows)
        return (row * (len(self) // self.rows) + step) * self.length

    def asked(self, indices: NDArray[Any]) -> NDArray[Any]:
        return np.full(len(indices), self.length)
