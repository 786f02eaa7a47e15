"""Where code waits for a device: it reads numbers, or copies numbers of the host without need."""

from __future__ import annotations

import traceback
from pathlib import Path

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from waiting import find_wait

import zoo

PACKAGE = Path(zoo.__file__).parent
OPTIMIZERS = Path(torch.optim.__file__).parent


class Waits(TorchDispatchMode):
    """Collect the lines of zoo that would make a host wait for its device.

    A tensor of numbers of the host is counted unless it is made for the CPU by name.
    """

    def __init__(self):
        super().__init__()
        self.found = set()
        self.copies = _Copies(self.note)

    def __enter__(self):
        self.copies.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self.copies.__exit__(*error)

    def note(self):
        lines = [(Path(frame.filename), frame.name) for frame in traceback.extract_stack()]
        # the steps that an optimizer of torch counts are tensors of the host
        if any(path.is_relative_to(OPTIMIZERS) for path, _ in lines):
            return
        # by the folder of the package: a clone of the project may lie in a folder zoo too
        own = [(path, name) for path, name in lines if path.is_relative_to(PACKAGE)]
        path, name = own[-1] if own else lines[0]
        found = path.relative_to(PACKAGE) if own else path
        self.found.add((found.as_posix(), name))

    def __torch_dispatch__(self, call, types, args=(), kwargs=None):
        if find_wait(call, args):
            self.note()
        return call(*args, **(kwargs or {}))


class _Copies(TorchFunctionMode):
    def __init__(self, note):
        super().__init__()
        self.note = note

    def __torch_function__(self, call, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        makes = call in (torch.tensor, torch.as_tensor, Tensor.new_tensor)
        if makes and kwargs.get("device") != "cpu" and not isinstance(args[-1], Tensor):
            self.note()
        # which reads numbers of a CPU without an operation
        if call is Tensor.tolist:
            self.note()
        if call is Tensor.__getitem__:
            keys = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(key, list) for key in keys):
                self.note()
        return call(*args, **kwargs)
