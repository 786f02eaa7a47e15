"""How large the tensors are that a piece of code makes."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that is made; views are not."""

    def __init__(self):
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, call, types, args=(), kwargs=None):
        found = call(*args, **(kwargs or {}))
        given = {one.untyped_storage().data_ptr() for one in args if isinstance(one, torch.Tensor)}
        for one in found if isinstance(found, tuple) else (found,):
            if isinstance(one, torch.Tensor) and one.untyped_storage().data_ptr() not in given:
                self.most = max(self.most, one.numel())
        return found
