"""What a process does with memory that it has freed."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

# glibc's mallopt: what a heap may hold before its end is given back, what is asked of the system at once, and the size
# from which an allocation is a mapping of its own, at most 32 MiB
TRIM, PAD, MAPPED = (-1, 2**31 - 1), (-2, 2**26), (-3, 2**25)
OTHERS = ("GLIBC_TUNABLES", "LD_PRELOAD", "MALLOC_")


def keep(environment: Mapping[str, str] = os.environ) -> bool:
    """Keep freed memory for what is allocated next, and tell whether this could be asked for.

    A training step allocates what the one before it has freed. Given back and asked for again, each page of it is cleared
    by the system when it is first touched, which took a tenth of a step on a CPU and more. Where the user has chosen an
    allocator or its options, and where there is no glibc, nothing is changed.
    """
    if any(name.startswith(OTHERS) for name in environment):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    return mallopt is not None and all(mallopt(*option) for option in (TRIM, PAD, MAPPED))
