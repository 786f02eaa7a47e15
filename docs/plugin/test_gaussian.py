"""The laws of zoo for this package's encoding: `python -m pytest test_gaussian.py`."""

from zoo.testing import laws

test_gaussian = laws("gaussian")
