"""Tune how glibc's allocator treats freed memory."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

# glibc's mallopt: free bytes at a heap's end before they are returned to the system, bytes
# requested from the system at once, and the size from which an allocation is a mapping of its
# own, at most 32 MiB
TRIM, PAD, MAPPED = (-1, 2**31 - 1), (-2, 2**26), (-3, 2**25)
OTHERS = ("GLIBC_TUNABLES", "LD_PRELOAD", "MALLOC_")


def keep(environment: Mapping[str, str] = os.environ) -> bool:
    """Keep freed memory for the next allocation, and return whether the allocator does so.

    A training step allocates what the one before it has freed. If that memory went back to the
    system, each page would be cleared again at its first use, a tenth of a step on a CPU or more.
    Nothing changes where the user has chosen an allocator or its options, or without glibc.
    """
    if any(name.startswith(OTHERS) for name in environment):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    return mallopt is not None and all(mallopt(*option) for option in (TRIM, PAD, MAPPED))
