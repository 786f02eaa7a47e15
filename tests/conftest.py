"""Every test starts from the same seed, on one thread, and no warning passes unnoticed but those named here."""

from __future__ import annotations

import pytest
import torch

KNOWN = (
    "ignore:flex_attention called without torch.compile:UserWarning",  # a CPU compares interpreters, slowly
    "ignore:<class 'torch.autograd.function.Function'> should not be instantiated:DeprecationWarning",  # by torch's compiler
)


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(1)
    for line in KNOWN:
        config.addinivalue_line("filterwarnings", line)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
