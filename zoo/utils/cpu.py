"""Settings of a process that make training on a CPU faster."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, MutableMapping

# glibc's mallopt: free bytes at a heap's end before they are returned to the system, bytes
# requested from the system at once, and the size from which an allocation is a mapping of its
# own, at most 32 MiB
TRIM, PAD, MAPPED = (-1, 2**31 - 1), (-2, 2**26), (-3, 2**25)
MALLOC_CHOICES = ("GLIBC_TUNABLES", "LD_PRELOAD", "MALLOC_")


def wait_passively(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let OpenMP threads sleep at barriers, unless the user chose OMP_WAIT_POLICY.

    Call it before torch is imported, since OpenMP reads the variable when it is loaded. By default
    threads spin at barriers, even while the thread they wait for is not scheduled: beside busy
    processes, two threads make 0.4 training steps a second in place of 5.
    """
    environment.setdefault("OMP_WAIT_POLICY", "passive")


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
