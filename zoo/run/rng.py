"""The state of every random generator that training draws from, as plain data."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def random_state() -> dict[str, Any]:
    """Of torch, on all devices, of numpy and of Python."""
    kind, keys, *rest = np.random.get_state()
    version, words, spare = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest],
        "python": [version, list(words), spare],
    }


def part_ways(seed: int, rank: int) -> None:
    """Have a process draw what no other one does; the first goes on as it would alone."""
    if rank:
        torch.manual_seed(int(np.random.SeedSequence([seed, rank]).generate_state(1)[0]))


def restore_random(state: dict[str, Any]) -> None:
    """Go on from what `random_state` gave; of devices only where there are as many."""
    torch.set_rng_state(state["torch"])
    if len(state["cuda"]) == torch.cuda.device_count() and state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    version, words, spare = state["python"]
    random.setstate((version, tuple(words), spare))


class Aside:
    """Streams of random numbers beside torch's own on the CPU, which stands where it stood when they are left.

    Each begins with what its name and the state of torch's own give, as that was when this was made.
    """

    def __init__(self) -> None:
        self.state = bytes(torch.get_rng_state().numpy())

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        seed = hashlib.sha256(self.state + name.encode()).digest()[:8]
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int.from_bytes(seed, "little", signed=True))
            yield
