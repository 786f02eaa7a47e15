"""Freed memory is kept, unless the user said otherwise."""

import resource
import sys

import pytest
import torch

from zoo.utils import malloc

PAGES = 8 * 2**20 // resource.getpagesize()


def faults() -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.empty(2**21).fill_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_freed_memory_is_used_again():
    assert malloc.keep({})
    faults()
    assert faults() < PAGES


def test_what_the_user_chose_stays():
    for name in ("MALLOC_TRIM_THRESHOLD_", "LD_PRELOAD", "GLIBC_TUNABLES"):
        assert not malloc.keep({name: "something"})
