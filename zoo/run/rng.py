"""Random generators: their states as plain data, and random streams beside torch's own."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def get_random_state() -> dict[str, Any]:
    """Return the states of torch on all devices, of numpy and of Python, as plain data."""
    kind, keys, *rest = np.random.get_state()
    version, words, spare = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest],
        "python": [version, list(words), spare],
    }


def seed_rank(seed: int, rank: int) -> None:
    """Give each process random numbers of its own; rank 0 draws what a lone process would."""
    if rank:
        torch.manual_seed(int(np.random.SeedSequence([seed, rank]).generate_state(1)[0]))


def set_random_state(state: dict[str, Any]) -> None:
    """Restore what `get_random_state` returned; of devices only if their number is the same."""
    torch.set_rng_state(state["torch"])
    if len(state["cuda"]) == torch.cuda.device_count() and state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    version, words, spare = state["python"]
    random.setstate((version, tuple(words), spare))


class RandomStreams:
    """Named random streams on the CPU beside torch's own, which they leave untouched.

    A stream's seed depends on its name and on the state of torch's generator when this was made.
    """

    def __init__(self) -> None:
        self.state = bytes(torch.get_rng_state().numpy())

    @contextmanager
    def use(self, name: str) -> Iterator[None]:
        """Draw from the stream of a name within the block."""
        seed = hashlib.sha256(self.state + name.encode()).digest()[:8]
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int.from_bytes(seed, "little", signed=True))
            yield
