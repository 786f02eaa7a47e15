"""What train, val and test are of the splits that a table has."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zoo.errors import Invalid

PARTS = ("train", "val", "test")


@dataclass(frozen=True)
class Parts:
    """The split that each part is; a number instead is a share of the training split, drawn from the seed."""

    train: str
    val: float | str
    test: float | str

    def __post_init__(self) -> None:
        for key in ("val", "test"):
            share = getattr(self, key)
            if not isinstance(share, str) and (share <= 0 or sum(self._shares().values()) >= 1):
                raise Invalid(key, f"shares of {self.train} must be positive and leave something to train on")
        if self.train in (self.val, self.test):
            raise Invalid("train", f"{self.train} would be both trained and measured on")

    @property
    def drawn(self) -> bool:
        """Whether a part depends on the seed."""
        return bool(self._shares())

    def streamed(self, streaming: bool, workers: int) -> None:
        """Raises Invalid where a stream cannot have such parts, or so many workers."""
        if streaming and self.drawn:
            raise Invalid("stream", "a stream has no shares; name a split for each of val and test")
        if streaming and workers > 1:
            told = "several would read a stream in an order that depends on their number; set it to 1"
            raise Invalid("workers", told)

    def split(self, part: str) -> str:
        """The name of the split that a part is taken from."""
        named = getattr(self, part)
        return named if isinstance(named, str) else self.train

    def numbers(self, part: str, count: int, seed: int) -> NDArray[np.int64]:
        """The numbers of a part's samples among the `count` of its split, ascending."""
        shares = self._shares()
        if isinstance(getattr(self, part), str) and (part != "train" or not shares):
            return np.arange(count)
        sizes = [round(share * count) for share in shares.values()]
        pieces = np.split(np.random.default_rng(seed).permutation(count), np.cumsum(sizes))
        return np.sort(dict(zip((*shares, "train"), pieces, strict=True))[part])

    def _shares(self) -> dict[str, float]:
        return {key: share for key in ("val", "test") if not isinstance(share := getattr(self, key), str)}
