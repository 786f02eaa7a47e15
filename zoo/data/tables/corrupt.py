"""Corrupt samples: counted, told, and skipped as far as a recipe tolerates them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from zoo.data.order import Loader
from zoo.data.tables.rows import Fetched
from zoo.errors import DataError

log = logging.getLogger("zoo")


class Corrupt:
    """The corrupt ones among `total` samples, of which a share is tolerated; this process meets those dealt out to it."""

    def __init__(self, share: float, total: int, processes: int = 1) -> None:
        self.share, self.total, self.alone = share, total // processes, processes == 1
        self.found: set[int] = set()

    def note(self, faults: Mapping[int, str]) -> None:
        """Raises DataError, naming one, where there are more than are tolerated."""
        fresh = {number: fault for number, fault in faults.items() if number not in self.found}
        self.found |= fresh.keys()
        for fault in fresh.values():
            count = f"{len(self.found)} of {self.total} samples"
            if len(self.found) > self.share * self.total:
                raise DataError(f"{fault}; corrupt: {count}, more than data.skip {self.share:g} tolerates")
            log.warning("skipped a corrupt sample: %s (%s)", fault, count)

    def sound(self, batches: Iterator[Fetched]) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and labels of batches; none where all of a batch is corrupt.

        Raises DataError there where other processes would wait for it.
        """
        for batch in batches:
            self.note(batch.faults)
            if len(batch.labels):
                yield batch.inputs, batch.labels
            elif not self.alone:
                raise DataError(f"{next(iter(batch.faults.values()))}; no sample of its batch is sound")


class SoundLoader(Loader):
    """A loader that skips corrupt ones. It fills pinned memory where there is CUDA."""

    corrupt: Corrupt

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return self.corrupt.sound(super().__iter__())
