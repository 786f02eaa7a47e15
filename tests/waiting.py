"""Operations of torch for which a host waits for its GPU: `find_wait` names the reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

WAITING = {
    "gives a number to the host": (
        "_local_scalar_dense",
        "is_nonzero",
        "equal.",
        # which compare their input with the range that is allowed, or look for it
        "multinomial",
        "normal.Tensor_Tensor",
        "normal.float_Tensor",
        "histc",
    ),
    "has a size that depends on numbers": (
        "nonzero",
        "argwhere",
        "masked_select",
        "_unique",
        "unique_dim",
        "unique_consecutive",
        "repeat_interleave.Tensor",
        "bincount",
        "_to_sparse",
    ),
    # `solve_ex`, `inv_ex` and `cholesky_ex` return theirs; `solve`, `inv` and others check them
    "reads error codes": (
        "_linalg_check_errors",
        "_linalg_eigh",
        "_linalg_svd",
        "linalg_eig.",
        "_linalg_eigvals",
        "linalg_lstsq",
    ),
    "reads norms": ("linalg_matrix_exp",),
}
"""Names of operations begin with these, by the reason of the wait."""
STATIC = ("nonzero_static",)


def find_wait(operation: Any, args: Sequence[Any]) -> str:
    """Return why a host waits for an operation, or nothing.

    Args:
        operation: An operation as a TorchDispatchMode gets it.
        args: Its positional arguments.
    """
    name = str(operation).removeprefix("aten.")
    if name.startswith(STATIC):
        return ""
    for reason, names in WAITING.items():
        if name.startswith(names):
            return reason
    if not name.startswith(("index.", "index_put", "_index_put", "_unsafe_index")):
        return ""
    masks = [one for one in args[1] if one is not None and one.dtype in (torch.bool, torch.uint8)]
    # One number of the host is filled in where the mask is, without looking for the places.
    value: Tensor | None = args[2] if "index_put" in name else None
    is_filled = value is not None and value.numel() == 1 and value.device.type == "cpu"
    return "is indexed by a mask" if masks and not is_filled else ""
