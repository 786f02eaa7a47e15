"""Train encodings and recipes on a CUDA device that is not there; print what a GPU would object to.

`python tests/gpu/train_on_missing_device.py [NAME ...]` prints a line of JSON for each of the named
encodings, planted faults and recipes: what the host waited for, what failed, and the bytes that a
layer keeps for the backward pass and takes at the peak of a step. An encoding is examined in bfloat16, or with
`NAME:float16` or `NAME:float32` in that dtype. Without names, it examines all encodings and faults; with `-`, it reads names
from standard input. With `--record` it only counts the bytes, and writes them to
`zoo/benchmark/layer_memory.json`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest import mock

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from missing_device import Waits, missing_device, move  # noqa: E402, I001

import torch  # noqa: E402
from small_recipes import LARGE, ROOT, shrink, write_data  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.utils._pytree import tree_map_only  # noqa: E402

import zoo  # noqa: E402
from zoo.attention.backends import dispatch  # noqa: E402
from zoo.config import Change, load  # noqa: E402
from zoo.config.command_line import parse_overrides  # noqa: E402
from zoo.data.images import Images  # noqa: E402
from zoo.encodings.common.chains import build_shortest_chain  # noqa: E402
from zoo.run.build import build_data, build_task  # noqa: E402
from zoo.run.callbacks import nan_guard  # noqa: E402
from zoo.run.callbacks.nan_guard import FiniteGuard, StepRecord  # noqa: E402
from zoo.run.processes import Processes  # noqa: E402
from zoo.tasks.target_weights import TargetWeights  # noqa: E402

KEPT = ROOT / "zoo" / "benchmark" / "layer_memory.json"
TOKENS = 8192
"""Length at which the kept bytes are counted: 8,192 tokens, or patches of 128 x 64."""
HALVES = (torch.bfloat16, torch.float16)


class HostTensor(zoo.Encoding):
    """A planted fault: a tensor that stays on the host."""

    def __init__(self, dims):
        super().__init__(dims)
        self.slopes = torch.ones(dims.heads)

    def modify(self, call):
        return call.replace(q=call.q * self.slopes[:, None, None])


class ReadsNumber(zoo.Encoding):
    """A planted fault: each call reads a number from the device."""

    def modify(self, call):
        return call.replace(q=call.q * call.q.amax().item())


class Copying(torch.autograd.Function):
    """The identity, whose gradient visits the host."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad.cpu().to(grad.device)


class CopiesGradient(zoo.Encoding):
    """A planted fault: the backward pass copies a gradient to the host."""

    def modify(self, call):
        return call.replace(q=Copying.apply(call.q))


class OtherDtype(zoo.Encoding):
    """A planted fault: queries leave their dtype."""

    def modify(self, call):
        return call.replace(q=call.q.to(torch.float16))


class HostTensorInBias(zoo.Encoding):
    """A planted fault: the index function of a bias reads a tensor that stays on the host."""

    def __init__(self, dims):
        super().__init__(dims)
        self.slopes = torch.ones(dims.heads)

    def modify(self, call):
        return call.add_bias(lambda b, h, i, j: self.slopes[h] * call.offset(b, i, j)[..., 0])


class AllPairs(zoo.Encoding):
    """A planted fault: a table of all pairs is kept for the backward pass."""

    def __init__(self, dims):
        super().__init__(dims)
        self.gain = nn.Parameter(torch.ones(dims.heads))

    def modify(self, call):
        pos = call.keys.pos[0, :, 0]
        table = (pos[:, None] - pos).abs().sqrt() * self.gain[:, None, None]
        return call.replace(v=call.v + table.exp().mean(-1)[..., None].to(call.v.dtype))


def assign_by_mask(x: Tensor) -> Tensor:
    """Assign numbers of the device where a mask is true."""
    out = x.clone()
    out[out > 0] = x.flatten()[:1]
    return out


def read_early(x: Tensor) -> Tensor:
    """Read a copy without waiting for it."""
    return x * x.amax().to("cpu", non_blocking=True).item()


def synchronize(x: Tensor) -> Tensor:
    """Wait for all that the device was given."""
    torch.cuda.synchronize()
    return x


WAITS = {
    "truth": lambda x: x if x.amax() > 0 else -x,
    "list": lambda x: x * torch.tensor([1.0, 1.0], device=x.device).sum(),
    "nonzero": lambda x: x + x.flatten().nonzero().sum(),
    "unique": lambda x: x + x.unique().sum(),
    "mask": lambda x: x + x[x > 0].mean(),
    "inv": lambda x: x * torch.linalg.inv(torch.eye(2, device=x.device))[0, 0],
    "solve": lambda x: x * torch.linalg.solve(*torch.ones(2, 2, 2, device=x.device))[0, 0],
    "cholesky": lambda x: x * torch.linalg.cholesky(torch.eye(2, device=x.device))[0, 0],
    "svd": lambda x: x * torch.linalg.svdvals(torch.eye(2, device=x.device))[0],
    "eigh": lambda x: x * torch.linalg.eigh(torch.eye(2, device=x.device))[0][0],
    "matrix_exp": lambda x: x * torch.linalg.matrix_exp(torch.eye(2, device=x.device))[0, 0],
    "assignment": assign_by_mask,
    "early read": read_early,
    "synchronize": synchronize,
}
"""Functions of queries that make the host wait, or read a number too early."""


def plant(change: Callable[[Tensor], Tensor]) -> type[zoo.Encoding]:
    """Return an encoding that changes queries by a function."""

    class Planted(zoo.Encoding):
        def modify(self, call):
            return call.replace(q=change(call.q))

    return Planted


PLANTED: dict[str, type[zoo.Encoding]] = {
    cls.__name__: cls
    for cls in (HostTensor, HostTensorInBias, ReadsNumber, CopiesGradient, OtherDtype, AllPairs)
} | {name: plant(change) for name, change in WAITS.items()}


BACKENDS = ("reference", "chunked", "sdpa", "flex")
"""Backends of the passes on short inputs; `auto` chooses one of them for long ones."""


def build(name: str, axes: int, length: int) -> zoo.Attention:
    """Build a layer, causal if it is of text and the encoding allows it."""
    planted = PLANTED.get(name)
    sizes = {1: (length,), 2: (length // 64, 64), 3: (1, length // 64, 64)}[axes]
    dims = zoo.Dims(64, 4, axes=axes, length=sizes, depth=2)
    chain = planted(dims) if planted else build_shortest_chain(zoo.encoding_class(name))
    try:
        return zoo.Attention(dims, chain, causal=axes == 1)
    except zoo.OptionError:
        return zoo.Attention(dims, chain)


def cast(dtype: torch.dtype) -> contextlib.AbstractContextManager[None]:
    """Return the context in which a model trains with half precision, if it is one."""
    is_half = dtype in HALVES
    return torch.autocast("cuda", dtype if is_half else HALVES[0], enabled=is_half)


def train(layer: zoo.Attention, length: int, dtype: torch.dtype, waits: Waits) -> dict[str, Any]:
    """Train a layer on the device for a step.

    Returns:
        The backend that ran, the bytes kept for the backward pass, and those in use at the peak of
        both passes, gradients included, beyond parameters and input.
    """
    sizes: dict[int, int] = {}
    ran: list[str] = []

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if tensor.device.type == "cuda":
            sizes[storage._cdata] = storage.nbytes()
        return tensor

    def choose(call, device=None):
        found = choose_backend(call, device)
        ran.append(found[0])
        return found

    choose_backend = dispatch.choose_backend
    with mock.patch.object(dispatch, "choose_backend", choose):
        layer.zero_grad()
        x = torch.empty(1, length, 64, device="cuda", requires_grad=True)
        waits.clear()
        before = waits.memory.used
        waits.memory.reset()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), cast(dtype):
            out = layer(x)
        out.float().square().sum().backward()
        check_gradients(layer)
        assert out.is_cuda
        assert x.grad.is_cuda
    return {
        "backend": ran[0] if ran else layer.layer.backend,
        "bytes": sum(sizes.values()),
        "peak": waits.memory.peak - before,
    }


def check_gradients(module: nn.Module) -> None:
    """Raise AssertionError if a gradient is not where its parameter is."""
    for name, parameter in module.named_parameters():
        if (grad := parameter.grad) is not None:
            kinds = (grad.device.type, grad.dtype)
            assert kinds == ("cuda", parameter.dtype), f"gradient of {name}: {kinds}"


def decode(layer: zoo.Attention, dtype: torch.dtype, waits: set[str]) -> None:
    """Read a prompt and one token with a cache, on the device."""
    steps = [torch.empty(1, count, 64, device="cuda") for count in (16, 1)]
    cache = zoo.KeyValueCache()
    waits.clear()
    with torch.no_grad(), cast(dtype):
        for x in steps:
            assert layer(x, context=cache).is_cuda


class Findings:
    """What a GPU would object to, over several passes."""

    def __init__(self) -> None:
        self.waits: set[str] = set()
        self.failures: dict[str, str] = {}
        self.passes: list[str] = []

    @contextlib.contextmanager
    def collect(self, title: str, waits: set[str]) -> Iterator[None]:
        """Note what a pass waited for, and whether it failed or was refused."""
        try:
            yield
        except zoo.OptionError:
            # zoo names a backend, or a cache, that an encoding cannot have.
            return
        except Exception as error:
            self.failures[title] = f"{type(error).__name__}: {error}"[:400]
        self.passes.append(title)
        self.waits |= waits

    def to_dict(self, **facts: Any) -> dict[str, Any]:
        return {"waits": sorted(self.waits), "failures": self.failures, **facts}


def examine_encoding(
    name: str, dtypes: Sequence[torch.dtype] = (torch.bfloat16,)
) -> dict[str, Any]:
    """Train an encoding, count the bytes it keeps, and decode with it.

    Each backend trains in each dtype. Bytes are counted in bfloat16 with the backend that `auto`
    chooses.
    """
    is_planted = name in PLANTED
    axes = PLANTED[name].axes if is_planted else zoo.encoding_class(name).axes
    number_of_axes, found, kept = min(axes), Findings(), {}
    layer, long_layer = build(name, number_of_axes, 64), build(name, number_of_axes, TOKENS)
    passes = [("sdpa", torch.float32)] if is_planted else [*itertools.product(BACKENDS, dtypes)]
    with missing_device() as waits:
        for one in (layer, long_layer):
            move(one)
        if torch.bfloat16 in dtypes:
            with found.collect("auto bfloat16", waits):
                kept = train(long_layer, TOKENS, torch.bfloat16, waits)
        for backend, dtype in passes:
            layer.layer.backend = backend
            with found.collect(f"{backend} {show_dtype(dtype)}", waits):
                train(layer, 64, dtype, waits)
        layer.layer.backend = "auto"
        if 1 in axes and not is_planted:
            layer.eval()
            for dtype in dtypes:
                with found.collect(f"decode {show_dtype(dtype)}", waits):
                    decode(layer, dtype, waits)
        if {1, 2} <= {*axes} and not is_planted:
            grid = build(name, 2, 64)
            move(grid)
            for dtype in set(dtypes) & {*HALVES}:
                with found.collect(f"grid {show_dtype(dtype)}", waits):
                    train(grid, 64, dtype, waits)
    return found.to_dict(kept=kept, passes=found.passes)


def measure_memory(name: str) -> dict[str, Any]:
    """Return what `train` finds for a layer at `TOKENS` tokens in bfloat16."""
    layer = build(name, min(zoo.encoding_class(name).axes), TOKENS)
    with missing_device() as waits:
        move(layer)
        return train(layer, TOKENS, torch.bfloat16, waits)


def show_dtype(dtype: torch.dtype) -> str:
    """Return the name of a dtype, without that of its package."""
    return str(dtype).removeprefix("torch.")


def examine_recipe(path: Path) -> dict[str, Any]:
    """Train a registered recipe, with fewer samples and layers, for two steps, with the guard."""
    found = Findings()
    recipe = load(path, [Change("data.path", "made")] if path in LARGE else [])
    # A pattern of layers is no longer than the depth.
    depth = [] if recipe.model.options.get("layer_pattern") else ["model.depth=1"]
    if getattr(recipe.data.options.get("augment"), "randaugment", 0):
        depth.append("data.augment.randaugment=15")  # all operations, in place of one at random
    recipe = load(path, parse_overrides([*depth, *shrink(recipe)]))
    write_data(recipe, Path.cwd())
    data = build_data(recipe)
    task = build_task(recipe, data.spec)
    data.setup("fit")
    batch = next(iter(data.train_dataloader()))
    with missing_device() as waits, found.collect("step", waits):
        move(task)
        batch = tree_map_only(Tensor, lambda one: torch.empty_like(one, device="cuda"), batch)
        waits.clear()
        if isinstance(data, Images):
            batch = data.transform(*batch, training=True, classes=data.spec.classes)
        optimizer = task.optim.configure(task.model, 2)["optimizer"]
        device = torch.device("cuda")
        trainer = SimpleNamespace(
            global_step=0,
            current_epoch=0,
            precision="bf16-mixed",
            optimizers=[optimizer],
            strategy=SimpleNamespace(root_device=device),
        )
        guard = FiniteGuard(SimpleNamespace(processes=Processes()))
        guard.on_train_start(trainer, task)
        for index in range(2):
            guard.steps.append(StepRecord(batch, index, {}, {}))
            with cast(torch.bfloat16):
                loss = task.training_step(batch, index)
            guard.on_before_zero_grad(trainer, task, optimizer)
            optimizer.zero_grad()
            guard.on_before_backward(trainer, task, loss)
            loss.backward()
            if task.num_targets is not None:
                # as with several processes, or accumulated batches
                weights = TargetWeights(None)
                weights.add(task.num_targets)
                weights.divide_gradients(task.parameters())
            check_gradients(task)
            guard.on_before_optimizer_step(trainer, task, optimizer)
            optimizer.step()
    return found.to_dict()


def examine(name: str) -> dict[str, Any]:
    """Examine an encoding, a planted fault or a registered recipe."""
    encoding, _, dtype = name.partition(":")
    if dtype:
        return examine_encoding(encoding, [getattr(torch, dtype)])
    if name in PLANTED or name in zoo.encoding_names():
        return examine_encoding(name)
    with contextlib.ExitStack() as stack:
        if name == "ReadsAtOnce":
            # a planted fault: the guard reads the flag of the step itself
            stack.enter_context(mock.patch.object(nan_guard, "_reads_later", return_value=False))
            name = "vit_none"
        stack.enter_context(contextlib.chdir(stack.enter_context(TemporaryDirectory())))
        return examine_recipe(ROOT / "recipes" / f"{name}.yaml")


def main(words: list[str]) -> None:
    """Examine what is named; write the kept bytes if asked to."""
    torch.set_num_threads(1)
    names = words or [*zoo.encoding_names(), *PLANTED]
    if "--record" in words:
        kept = {name: measure_memory(name) for name in zoo.encoding_names()}
        KEPT.write_text(json.dumps(kept, indent=2, sort_keys=True) + "\n")
        return
    for name in map(str.strip, sys.stdin) if names == ["-"] else names:
        facts = examine(name)
        seconds = round(time.process_time(), 1)
        print(json.dumps({"name": name, **facts, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    main(sys.argv[1:])
