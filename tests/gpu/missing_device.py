"""A CUDA device that is not there, on which models train without a GPU.

Tensors on it are fakes: they have a shape, a dtype and a device, and no numbers. Operations on
tensors of two devices, or of dtypes that do not go together, fail as they would on a GPU. Whatever
would make the host wait for the device is noted: copies to or from the host, and reads of numbers.

Import this module before anything uses torch, in a process of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import itertools
import os
import subprocess
import sys
import tempfile
import traceback
import weakref
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock


def load_device() -> None:
    """Compile missing_device.cpp, unless that has been done, and load it.

    Raises:
        SystemExit: There is no compiler.
    """
    torch_folder = Path(importlib.util.find_spec("torch").origin).parent
    source = Path(__file__).with_suffix(".cpp")
    key = zlib.crc32(f"{torch_folder}{os.getuid()}".encode() + source.read_bytes())
    library = Path(tempfile.gettempdir()) / f"zoo_missing_device_{key}.so"
    if not library.exists():
        made = library.with_suffix(f".{os.getpid()}")
        words = ["g++", "-std=c++20", "-O0", "-shared", "-fPIC", f"-I{torch_folder}/include"]
        words += [str(source), "-o", str(made), f"-L{torch_folder}/lib", "-lc10", "-ltorch_cpu"]
        try:
            subprocess.run(words, check=True)
        except FileNotFoundError:
            sys.exit("the missing device needs a C++ compiler: install g++")
        # Another process may be doing the same.
        made.replace(library)
    for name in ("libc10.so", "libtorch_cpu.so"):
        ctypes.CDLL(str(torch_folder / "lib" / name), ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(library))


load_device()

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.nn.attention.flex_attention import AuxOutput, flex_attention  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402
from waiting import find_wait  # noqa: E402

aten = torch.ops.aten

PACKAGE = Path(__file__).resolve().parents[2] / "zoo"
READS = {
    Tensor.item: 1.0,
    Tensor.tolist: [],
    Tensor.__float__: 0.0,
    Tensor.__int__: 0,
    Tensor.__index__: 0,
}
"""Reads of numbers on the device, and what they are answered with."""


def find_line() -> str:
    """Return the innermost line of zoo on the stack, or of a planted fault."""
    for frame in reversed(traceback.extract_stack()):
        path = Path(frame.filename)
        if path.is_relative_to(PACKAGE):
            return f"{path.relative_to(PACKAGE).as_posix()}: {frame.line}"
        if frame.filename.endswith("train_on_missing_device.py"):
            return f"{frame.name}: {frame.line}"
    return "elsewhere"


def check_heads(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> None:
    """Refuse what the fused kernels refuse.

    Raises:
        RuntimeError: Dtypes or devices differ.
    """
    kinds = {(one.dtype, one.device) for one in (q, k, v)}
    if mask is not None:
        kinds.add((q.dtype if mask.dtype == torch.bool else mask.dtype, mask.device))
    if len(kinds) > 1:
        raise RuntimeError(
            f"a fused kernel with tensors of several kinds: {sorted(map(str, kinds))}"
        )


def attend_fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute attention with the kernel that torch would choose on a GPU.

    A build for the CPU would choose plain operations, which keep a score for each pair.
    """
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
        q, k, v = (one.to(dtype) for one in (q, k, v))
        if attn_mask is not None and attn_mask.is_floating_point():
            attn_mask = attn_mask.to(dtype)
    check_heads(q, k, v, attn_mask)
    if enable_gqa:
        k, v = (one.repeat_interleave(q.shape[1] // k.shape[1], 1) for one in (k, v))
    if attn_mask is None and q.dtype != torch.float32 and q.shape[-1] == v.shape[-1]:
        kernel = aten._scaled_dot_product_flash_attention
        return kernel(q, k, v, dropout_p, is_causal, scale=scale)[0]
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=q.dtype).masked_fill(~attn_mask, -1e9)
        attn_mask = attn_mask.expand(*q.shape[:3], k.shape[2])
    kernel = aten._scaled_dot_product_efficient_attention
    return kernel(q, k, v, attn_mask, True, dropout_p, is_causal, scale=scale)[0]


class FlexKernel(torch.autograd.Function):
    """The kernel of FlexAttention: keeps its inputs, its output and a number for each query."""

    @staticmethod
    def forward(ctx, q, k, v, *captured):
        out = q.new_empty(*q.shape[:3], v.shape[-1])
        lse = q.new_empty(q.shape[:3], dtype=torch.float32)
        ctx.save_for_backward(q, k, v, out, lse, *captured)
        return out, lse

    @staticmethod
    def backward(ctx, grad_out, grad_lse):
        q, k, v, _, _, *captured = ctx.saved_tensors
        if grad_out.dtype != q.dtype:
            raise RuntimeError(f"flex: a gradient in {grad_out.dtype} of an output in {q.dtype}")
        return tuple(
            torch.empty_like(one) if one.is_floating_point() else None
            for one in (q, k, v, *captured)
        )


def attend_flex(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    score_mod: Any = None,
    block_mask: Any = None,
    scale: float | None = None,
    return_aux: Any = None,
) -> Any:
    """Stand in for compiled `flex_attention`. `score_mod` is traced for one pair."""
    if torch.is_autocast_enabled("cuda"):
        q, k, v = (one.to(torch.get_autocast_dtype("cuda")) for one in (q, k, v))
    check_heads(q, k, v)
    captured: list[Tensor] = []
    if score_mod is not None:
        score, index = q.new_empty(1, dtype=torch.float32), q.new_zeros(1, dtype=torch.int32)
        with Captures([score, index]) as captures:
            result = score_mod(score, index, index, index, index)
        captured = captures.found
        if result.dtype != torch.float32 or result.numel() != 1:
            raise RuntimeError(f"score_mod gave {result.dtype} {list(result.shape)} for a score")
    out, lse = FlexKernel.apply(q, k, v, *captured)
    return out if return_aux is None else (out, AuxOutput(lse=lse))


class Captures(TorchFunctionMode):
    """Collect the tensors that a function reads and did not get or make itself."""

    def __init__(self, given: list[Tensor]) -> None:
        super().__init__()
        self.known, self.found = list(given), list[Tensor]()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        for one in tree_leaves((args, kwargs)):
            if isinstance(one, Tensor) and not any(one is other for other in self.known):
                self.known.append(one)
                self.found.append(one)
        out = func(*args, **kwargs)
        self.known += [one for one in tree_leaves(out) if isinstance(one, Tensor)]
        return out


def compile_nothing(function: Any, **options: Any) -> Any:
    """Stand in for torch.compile, which cannot compile for a device without kernels."""
    return attend_flex if function is flex_attention else function


class Arrivals:
    """Copies from the device that nothing has waited for, by the storage on the host."""

    def __init__(self, waits: set[str]) -> None:
        self.waits = waits
        self.pending: dict[int, int] = {}  # with the number of operations before each copy
        self.kept: list[Tensor] = []  # so that no other storage gets the same key

    def add(self, copy: Tensor, count: int) -> None:
        """Note a copy that the device has been given after `count` operations."""
        self.pending[copy.untyped_storage()._cdata] = count
        self.kept.append(copy)

    def complete(self, count: int) -> None:
        """Forget the copies among the first `count` operations."""
        self.pending = {key: one for key, one in self.pending.items() if one > count}

    def check(self, tensors: list[Tensor]) -> None:
        """Note a read of a tensor on the host that may not have arrived."""
        here = [one for one in tensors if one.device.type == "cpu"]
        if any(one.untyped_storage()._cdata in self.pending for one in here):
            self.waits.add(f"early read of a copy in {find_line()}")


class Reads(TorchFunctionMode):
    """Answer reads of numbers on the device, and note them."""

    def __init__(self, waits: set[str], arrivals: Arrivals) -> None:
        super().__init__()
        # A check that raises if a number is wrong may compare it in either way.
        self.waits, self.truths = waits, itertools.cycle([True, False])
        self.arrivals = arrivals

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if args and isinstance(args[0], FakeTensor):
            # a copy on the host, of a flag that is not set
            if func in READS and args[0].device.type == "cpu":
                self.arrivals.check([args[0]])
                return type(READS[func])()
            if func is Tensor.__bool__ and args[0].device.type == "cpu":
                self.arrivals.check([args[0]])
                return False
            if func in READS or func is Tensor.__bool__:
                self.waits.add(f"{func.__name__} in {find_line()}")
                return next(self.truths) if func is Tensor.__bool__ else READS[func]
            if func is F.scaled_dot_product_attention:
                return attend_fused(*args, **(kwargs or {}))
            if func is Tensor.__format__:
                return "?"
        return func(*args, **(kwargs or {}))


class Memory:
    """Bytes of the device in use, and the most of them since `reset`."""

    def __init__(self) -> None:
        self.used = self.peak = 0
        self.known: set[int] = set()

    def add(self, tensors: list[Tensor]) -> None:
        """Count storages on the device until nothing holds them."""
        for tensor in tensors:
            if not isinstance(tensor, FakeTensor) or tensor.fake_device.type != "cuda":
                continue
            storage = tensor.untyped_storage()
            if storage._cdata not in self.known:
                self.known.add(storage._cdata)
                self.used += storage.nbytes()
                weakref.finalize(storage, self._free, storage._cdata, storage.nbytes())
        self.peak = max(self.peak, self.used)

    def _free(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.used -= size

    def reset(self) -> None:
        """Begin to look for the peak."""
        self.peak = self.used


class Operations(TorchDispatchMode):
    """Make fakes of tensors on the device, and note copies and sizes that wait for it."""

    def __init__(self, waits: set[str], fakes: FakeTensorMode, arrivals: Arrivals) -> None:
        super().__init__()
        self.waits, self.fakes, self.count = waits, fakes, 0
        self.arrivals, self.memory = arrivals, Memory()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # nothing is compiled here, and the wrapper that prevents it takes a tenth of the time
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # asked for as often as everything else
        kwargs = kwargs or {}
        name, device = str(func), kwargs.get("device")
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        is_there = any(isinstance(one, FakeTensor) for one in tensors)
        is_made = device is not None and torch.device(device).type == "cuda"
        on_device = any(
            isinstance(one, FakeTensor) and one.fake_device.type == "cuda" for one in tensors
        )
        if on_device and (reason := find_wait(func, args)):
            self.waits.add(f"{name}, which {reason}, in {find_line()}")
        self.count += is_there
        if is_there or is_made:
            out = self.fakes.dispatch(func, types, args, kwargs)
        else:
            out = func(*args, **kwargs)
        self.memory.add([one for one in tree_leaves(out) if isinstance(one, Tensor)])
        # _to_copy(source), copy_(target, source)
        if name.startswith(("aten._to_copy", "aten.copy_")):
            source = tensors[-1 if name.startswith("aten.copy_") else 0]
            if source.device.type != out.device.type:
                self.note_copy(source, out, is_blocking=not find_non_blocking(func, args, kwargs))
        elif self.arrivals.pending and not is_view(func):
            self.arrivals.check(tensors)
        return out

    def note_copy(self, source: Tensor, out: Tensor, *, is_blocking: bool) -> None:
        """Note a copy that waits, and remember one to the host that does not."""
        if is_blocking:
            ways = f"{source.device.type} to {out.device.type}"
            self.waits.add(f"copy {ways} in {find_line()}")
        elif out.device.type == "cpu":
            self.arrivals.add(out, self.count)


def find_non_blocking(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return the argument `non_blocking` of a copy, given by name or by position."""
    if "non_blocking" in kwargs:
        return bool(kwargs["non_blocking"])
    names = [one.name for one in func._schema.arguments]
    place = names.index("non_blocking")
    return len(args) > place and bool(args[place])


def is_view(func: Any) -> bool:
    """Return whether an operation reads no numbers: its result shares memory with its input."""
    return any(
        one.alias_info is not None and not one.alias_info.is_write for one in func._schema.returns
    )


class Waits(set[str]):
    """What the host waited for so far, and the memory of the device."""

    memory: Memory


class Moment:
    """Stand in for torch.cuda.Event; a wait for the last operation of the device is noted."""

    def __init__(self, operations: Operations, *args: Any, **options: Any) -> None:
        self.operations, self.count = operations, 0

    def record(self, stream: Any = None) -> None:
        """Remember the operations so far."""
        self.count = self.operations.count

    def synchronize(self) -> None:
        """Wait for these operations."""
        if self.operations.count == self.count:
            self.operations.waits.add(f"synchronize in {find_line()}")
        self.operations.arrivals.complete(self.count)


@contextlib.contextmanager
def missing_device() -> Iterator[Waits]:
    """Make tensors on cuda fakes, and yield the set of what the host waited for so far."""
    waits = Waits()
    with contextlib.ExitStack() as stack:
        for name, answer in {
            "torch.cuda.amp.common.amp_definitely_not_available": lambda: False,
            "torch.cuda._lazy_init": lambda: None,
            "torch.cuda.is_bf16_supported": lambda *args, **options: True,
            "torch.cuda.is_current_stream_capturing": lambda: False,
            "torch.compile": compile_nothing,
        }.items():
            stack.enter_context(mock.patch(name, answer))
        # torch.tensor(..., device="cuda") makes a tensor on the CPU and copies it.
        stack.callback(torch._C._set_only_lift_cpu_tensors, torch._C._only_lift_cpu_tensors())
        torch._C._set_only_lift_cpu_tensors(True)
        # The modes below hold for one thread, and so must the backward pass.
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        arrivals = Arrivals(waits)
        operations = Operations(waits, FakeTensorMode(allow_non_fake_inputs=True), arrivals)

        waits.memory = operations.memory

        def wait_for_all(device: Any = None) -> None:
            waits.add(f"torch.cuda.synchronize in {find_line()}")
            arrivals.complete(operations.count)

        stack.enter_context(mock.patch("torch.cuda.synchronize", wait_for_all))
        stack.enter_context(mock.patch("torch.cuda.Event", partial(Moment, operations)))
        stack.enter_context(operations)
        stack.enter_context(Reads(waits, arrivals))
        yield waits


def move(module: nn.Module) -> None:
    """Move registered parameters and buffers to the device, as `module.cuda()` does."""
    moved: dict[int, tuple[Tensor, Tensor]] = {}
    for one in module.modules():
        for tensors in (one._parameters, one._buffers):
            for name, value in tensors.items():
                if value is None:
                    continue
                if id(value) not in moved:
                    new = torch.empty_like(value, device="cuda")
                    if isinstance(value, nn.Parameter):
                        new = nn.Parameter(new, value.requires_grad)
                    # The old tensor is kept so that no other gets its id.
                    moved[id(value)] = value, new
                tensors[name] = moved[id(value)][1]
