"""Compare the outputs of a model with those that another program computes from the same weights."""

from __future__ import annotations

import copy
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO

from torch import Tensor, nn

TOLERANCE = 1e-5  # of outputs computed by another program, relative to 1 + |output|
ROUNDING = 4  # times what the model itself rounds, where that is more

Outputs = Tensor | Sequence[Tensor]


def compare_outputs(
    actual: Outputs, expected: Outputs, compute_exact: Callable[[], Outputs]
) -> tuple[float, float]:
    """Compare outputs of another program with those of a model.

    Large angles and long sums are rounded more than to the tolerance: where the difference is
    larger, both are compared with the model in float64.

    Args:
        actual: The outputs of the other program.
        expected: Those of the model.
        compute_exact: Computes those of the model in float64.

    Returns:
        The largest difference, relative to 1 + |output|, and the largest that rounding explains.
    """
    difference, allowed = measure_difference(actual, expected), TOLERANCE
    if not difference <= TOLERANCE:
        exact = compute_exact()
        allowed = max(allowed, ROUNDING * measure_difference(expected, exact))
        difference = measure_difference(actual, exact)
    return difference, allowed


def measure_difference(actual: Outputs, expected: Outputs) -> float:
    """Return the largest difference of outputs, relative to 1 + |output|.

    It is infinite between outputs of different shapes.
    """
    actual, expected = (
        [output] if isinstance(output, Tensor) else output for output in (actual, expected)
    )
    pairs = [*zip(actual, expected, strict=True)]
    if any(left.shape != right.shape for left, right in pairs):
        return math.inf
    return max(float(((left - right).abs() / (1 + right.abs())).max()) for left, right in pairs)


def copy_to_float64(model: nn.Module) -> nn.Module:
    """Return a copy of a model that computes in float64."""
    return copy.deepcopy(model).double()


@contextmanager
def hide_output() -> Iterator[None]:
    """Hide what another library prints and logs in this block: progress, graphs and warnings."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)  # such as: torchvision is not installed
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
