"""Settings of a process that make training on a CPU faster."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, MutableMapping

# glibc's mallopt: free bytes at a heap's end before they are returned to the system, bytes
# requested from the system at once, and the size from which an allocation is a mapping of its
# own, at most 32 MiB
TRIM, PAD, MAPPED = (-1, 2**31 - 1), (-2, 2**26), (-3, 2**25)
# tests of a barrier before an OpenMP thread sleeps; libgomp's own default is 300,000 or more
SPIN_COUNT = "10000"

MALLOC_CHOICES = ("GLIBC_TUNABLES", "LD_PRELOAD", "MALLOC_")


def limit_spinning(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let OpenMP threads spin only shortly at barriers, unless the user chose how they wait.

    Call it before torch is imported, since OpenMP reads the variables when it is loaded. By default
    threads spin for long, even while the thread they wait for is not scheduled: beside busy
    processes, two threads make 0.4 training steps a second in place of 5. Threads that sleep at
    once (OMP_WAIT_POLICY=passive) take half of the speed of an idle machine, where a tiny model
    passes a barrier every few microseconds.
    """
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)


def keep_freed_memory(environment: Mapping[str, str] = os.environ) -> bool:
    """Keep freed memory for the next allocation; return if the allocator does so.

    A training step allocates what the one before it has freed. If that memory went back to the
    system, each page would be cleared again at its first use, a tenth of a step on a CPU or more.
    Nothing changes where the user has chosen an allocator or its options, or without glibc.
    """
    if any(name.startswith(MALLOC_CHOICES) for name in environment):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    return mallopt is not None and all(mallopt(*option) for option in (TRIM, PAD, MAPPED))
