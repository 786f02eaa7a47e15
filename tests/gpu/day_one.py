"""Measure what only a GPU can show: `python tests/gpu/day_one.py --out FILE`.

Parts, each with its share of the time; a line that fails is recorded, and the next one follows:

    values   outputs and gradients of each encoding in each dtype, against float64 on the CPU
    flex     the same of FlexAttention, whose kernels are compiled for each encoding; then its masks
    compile  a compiled layer at three lengths: its error, and how often it was compiled
    waits    where the host waits for the device in a training step, after one that is planted
    fits     `zoo fit` of four recipes, with diagnostics, checkpoints, guard and moving average; a
             planted wait, a planted NaN, a stop and its resumption, compiled blocks
    nccl     a reduction by one process
    speed    time and memory of each encoding, as multiples of plain scaled_dot_product_attention
    steps    training steps of models, with those of x-transformers and timm
    images   images per second of the augmentation on the device
    cifar10  an epoch of vit_comrope_cifar10, from the folder --cifar10

A line with a number above the limit of its part, LIMITS, names it under `exceeds`. The exit code is
1 if a line failed or exceeds a limit. `--device cpu --small` runs every part on few encodings, to
see that the program works.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from fits import Fit, plant_nan, plant_wait, stop_and_resume, train_recipe
from gpu_probes.callbacks.step_probe import catch_waits
from torch import Tensor, distributed
from torch.nn import functional as F

import zoo
from zoo.benchmark.measures import TrainMeasure
from zoo.benchmark.models import build_contender, build_peers
from zoo.benchmark.protocol import SHAPES, Workload, synchronize, time_once
from zoo.data.vision import Augmentation, ImageTransform
from zoo.encodings.common.chains import build_shortest_chain
from zoo.options import Choice

SHARES = {
    "values": 0.15,
    "flex": 0.3,
    "compile": 0.35,
    "waits": 0.4,
    "fits": 0.72,
    "nccl": 0.74,
    "speed": 0.84,
    "steps": 0.9,
    "images": 0.92,
    "cifar10": 1.0,
}
"""Shares of the time after which each part ends."""
# Four times what the CPU shows with the same dtypes, where all three are exact to their rounding.
ERRORS = {"float32": 1e-5, "bfloat16": 4e-2, "float16": 1e-2}
LIMITS: dict[str, dict[str, float]] = {
    "values": {
        f"{backend} {title}": error
        for backend in ("auto", "sdpa")
        for title, error in ERRORS.items()
    },
    "flex": {f"flex {title}": error for title, error in ERRORS.items()},
    # lengths of 128, 256 and 512: one graph for the first, one for all others
    "compile": {"error": 1e-4, "graphs": 2, "breaks": 0},
    "waits": {"lines": 0},
    # a loader that is slower than the steps leaves the device idle
    "fits": {"waits": 0, "loader of step": 1.0, "idle_share": 0.5, "peak of predicted": 2.0},
}
"""The largest number that is right, by part and fact; of a list, its length."""
DTYPES = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}
HALF = torch.bfloat16
HEAD_DIM = 64

Line = tuple[str, Callable[[], dict[str, Any]]]
"""A name, and what measures the facts about it."""
Pass = tuple[str, str]
"""A backend and the name of a dtype."""


class Skipped(Exception):
    """A measure that this device does not have."""


class Session:
    """A device, a time limit, and the file of lines."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.device, self.small, self.cifar10 = options.device, options.small, options.cifar10
        self.limit, self.out = options.limit, options.out
        self.began, self.lines = time.monotonic(), list[dict[str, Any]]()
        self.is_gpu = self.device == "cuda"
        names = zoo.encoding_names()
        self.names = [name for name in names if name in ("fox", "rope", "t5")]
        if not self.small:
            self.names = names
        self.texts = [name for name in self.names if 1 in zoo.encoding_class(name).axes]

    def run(self, part: str, lines: Iterator[Line]) -> None:
        """Measure the lines of a part until its time is over."""
        for name, measure in lines:
            if time.monotonic() - self.began > SHARES[part] * self.limit:
                self.write(part, name, {"skipped": "the time of this part is over"})
                continue
            try:
                facts = measure()
            except Skipped as reason:
                facts = {"skipped": str(reason)}
            except Exception as error:
                facts = {"failed": f"{type(error).__name__}: {error}"[:300]}
            if excess := list_excess(part, facts):
                facts["exceeds"] = excess
            self.write(part, name, facts)
            if self.is_gpu:
                torch.cuda.empty_cache()

    def write(self, part: str, name: str, facts: dict[str, Any]) -> None:
        """Print a line and write the file anew, since the machine may go away."""
        self.lines.append({"part": part, "name": name, **facts})
        print(json.dumps(self.lines[-1]), flush=True)
        self.out.write_text(json.dumps(self.lines, indent=1) + "\n")


def list_excess(part: str, facts: dict[str, Any]) -> list[str]:
    """Return the facts that are above the limits of a part, as text."""
    excess = []
    for name, limit in LIMITS.get(part, {}).items():
        value = facts.get(name)
        if isinstance(value, dict):
            value = value.get("error")
        if isinstance(value, list):
            value = len(value)
        # not at most, so that NaN is too large
        if value is not None and not value <= limit:
            excess.append(f"{name} is {value:.3g}, at most {limit:g}")
    return excess


@dataclass(frozen=True)
class Case:
    """An input of a layer: its size, and what hides keys from queries."""

    length: int = 128
    head_dim: int = 16
    heads: int = 4
    window: int | None = None
    documents: tuple[int, ...] = ()
    """Number of tokens of each document; -1 for the rest, which is padding."""

    @property
    def dim(self) -> int:
        """Width of the layer."""
        return self.head_dim * self.heads

    def list_documents(self) -> Tensor | None:
        """Return the number of each token's document [N]; None without documents."""
        if not self.documents:
            return None
        numbers = [number for number, size in enumerate(self.documents) for _ in range(size)]
        return torch.tensor(numbers + [-1] * (self.length - len(numbers)))

    def build_pair(self, name: str) -> tuple[zoo.Attention, zoo.Attention]:
        """Build a layer of an encoding twice, with equal weights."""
        pair = tuple(build_layer(name, self.length, self.dim, self.heads) for _ in range(2))
        for layer in pair:
            layer.layer.window = self.window
        return pair


USUAL = Case()


def build_layer(name: str, length: int, dim: int = 64, heads: int = 4) -> zoo.Attention:
    """Build a layer, on a grid if the encoding has no text, and causal if it may be."""
    axes = zoo.encoding_class(name).axes
    is_text, is_grid = 1 in axes, 2 in axes
    sizes = (length,) if is_text else (length // 8, 8) if is_grid else (length // 16, 4, 4)
    dims = zoo.Dims(dim, heads, axes=len(sizes), length=sizes, depth=2)
    chain = build_shortest_chain(zoo.encoding_class(name))
    torch.manual_seed(0)
    try:
        return zoo.Attention(dims, chain, causal=is_text).eval()
    except zoo.OptionError:
        return zoo.Attention(dims, chain).eval()


def train(
    layer: zoo.Attention,
    x: Tensor,
    case: Case = USUAL,
    dtype: torch.dtype | None = None,
    backend: str = "auto",
) -> dict[str, Tensor]:
    """Return the output and all gradients of a pass."""
    document = case.list_documents()
    document = None if document is None else document.to(x.device)
    layer.layer.backend = backend
    layer.zero_grad()
    x = x.detach().requires_grad_()
    with torch.autocast(x.device.type, dtype or torch.bfloat16, enabled=dtype is not None):
        out = layer(x, document=document)
    # nothing reads the output of padding
    out = out if document is None else out[:, document >= 0]
    (out if out.dtype == torch.float64 else out.float()).square().sum().backward()
    found = {name: p.grad for name, p in layer.named_parameters() if p.grad is not None}
    return {"out": out.detach(), "x": x.grad, **found}


def find_error(found: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, Any]:
    """Return the largest error of any tensor, as a share of its norm, and the tensor's name."""
    errors = {}
    for name, value in exact.items():
        if (norm := float(value.norm())) > 1e-9:
            errors[name] = float((found[name].cpu().double() - value).norm()) / norm
    worst = max(errors, key=lambda name: errors[name])
    return {"error": errors[worst], "of": worst}


def compare(
    session: Session,
    layers: tuple[zoo.Attention, zoo.Attention],
    case: Case,
    passes: Sequence[Pass],
) -> dict[str, Any]:
    """Return the errors of several passes of the second layer, against the first in float64."""
    torch.manual_seed(1)
    x = torch.randn(2, case.length, case.dim)
    exact = train(layers[0].double(), x.double(), case, backend="reference")
    layer, there = layers[1].to(session.device), x.to(session.device)
    facts = {}
    for backend, title in passes:
        try:
            found = find_error(train(layer, there, case, DTYPES[title], backend), exact)
        except zoo.OptionError as reason:
            found = {"refused": str(reason)[:100]}
        except Exception as error:
            found = {"failed": f"{type(error).__name__}: {error}"[:200]}
        facts[f"{backend} {title}"] = found
    return facts


def list_values(session: Session) -> Iterator[Line]:
    """Compare what `auto` chooses and sdpa with the reference."""
    passes = [*(("auto", title) for title in DTYPES), ("sdpa", "float32")]
    for name in session.names:
        yield name, lambda name=name: compare(session, USUAL.build_pair(name), USUAL, passes)


# 389 tokens are no multiple of the 128 of a block of FlexAttention.
MASKS = {
    f"{title}, {head_dim} channels": Case(389, head_dim, 2, **options)
    for head_dim in (64, 128)
    for title, options in {
        "all": {},
        "window of 100": {"window": 100},
        "documents": {"documents": (130, 200, 59)},
        "padding": {"documents": (300,)},
    }.items()
}


def list_flex(session: Session) -> Iterator[Line]:
    """Compare FlexAttention with the reference, encodings for which `auto` chooses it first."""
    path = Path(zoo.__file__).parent / "benchmark" / "layer_memory.json"
    kept = json.loads(path.read_text())
    passes = [("flex", "float32"), ("flex", "bfloat16")]

    def compare_compiled(name: str, case: Case) -> dict[str, Any]:
        torch._dynamo.reset()
        return compare(session, case.build_pair(name), case, passes)

    for name in session.texts[:1] if session.small else ("rope", "t5", "fox"):
        for title, case in MASKS.items():
            yield f"{name}, {title}", lambda n=name, c=case: compare_compiled(n, c)
    for name in sorted(session.names, key=lambda name: kept[name]["backend"] != "flex"):
        yield name, lambda name=name: compare_compiled(name, USUAL)


def list_compiled(session: Session) -> Iterator[Line]:
    """Compile layers, and run them at three lengths."""
    from torch._dynamo.utils import counters

    def compile_layer(name: str) -> dict[str, Any]:
        torch._dynamo.reset()
        counters.clear()
        layer = build_layer(name, 512).to(session.device)
        fast = torch.compile(layer, backend="eager" if session.small else "inductor")
        errors = []
        for length in (128, 256, 512):
            x = torch.randn(2, length, 64, device=session.device)
            with torch.no_grad():
                errors.append(float((fast(x) - layer(x)).abs().max()))
        breaks = sum(counters["graph_break"].values())
        return {
            "error": max(errors),
            "errors": errors,
            "graphs": counters["stats"]["unique_graphs"],
            "breaks": breaks,
        }

    for name in session.texts[:1] if session.small else ("rope", "alibi", "t5", "fox", "fire"):
        yield name, lambda name=name: compile_layer(name)


def list_waits(session: Session) -> Iterator[Line]:
    """Record where a training step makes the host wait."""

    def find_waits(act: Callable[[], object]) -> list[str]:
        if not session.is_gpu:
            raise Skipped("torch.cuda.set_sync_debug_mode needs a GPU")
        act()
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                act()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return catch_waits(caught)

    def plant() -> dict[str, Any]:
        lines = find_waits(lambda: float(torch.ones(2, device=session.device).sum()))
        if not lines:
            raise RuntimeError(
                "a planted wait is not seen, so nothing below shows that there is none"
            )
        return {"planted": lines}

    def find_waits_of(name: str) -> dict[str, Any]:
        layer = build_layer(name, 128).to(session.device)
        x = torch.randn(2, 128, 64, device=session.device)
        return {"lines": find_waits(lambda: train(layer, x))}

    yield "planted", plant
    for name in session.names:
        yield name, lambda name=name: find_waits_of(name)


COMPILED = {"trainer.compile": "blocks"}


def list_fits(session: Session) -> Iterator[Line]:
    """Train recipes with `zoo fit`, and plant faults in one of them."""
    seconds = 120.0
    with tempfile.TemporaryDirectory() as root:

        def prepare(recipe: str, title: str) -> Fit:
            folder = Path(root) / f"{recipe} {title}"
            folder.mkdir()
            limit = min(seconds, session.limit - (time.monotonic() - session.began))
            size = {"steps": 6, "batch": 8} if session.small else {}
            return Fit(recipe, folder, session.device, limit, **size)

        whole: dict[str, Any] = {}
        recipes = ("vit_comrope", "lm_rope", "lm_fox", "seg_digits_rope_axial")
        for recipe in recipes[:1] if session.small else recipes:

            def keep(recipe: str = recipe) -> dict[str, Any]:
                whole[recipe] = train_recipe(prepare(recipe, "whole"))
                return whole[recipe]

            yield recipe, keep
        recipe = recipes[0]
        yield (
            f"{recipe}, stopped and resumed",
            lambda: stop_and_resume(prepare(recipe, "stopped"), whole[recipe]),
        )
        yield f"{recipe}, a planted NaN", lambda: plant_nan(prepare(recipe, "nan"))
        if session.is_gpu:
            yield f"{recipe}, a planted wait", lambda: plant_wait(prepare(recipe, "wait"))
            for name in recipes[:2]:
                fit = prepare(name, "compiled")
                yield f"{name}, compiled blocks", lambda fit=fit: train_recipe(fit, COMPILED)


def list_reductions(session: Session) -> Iterator[Line]:
    """Reduce a number among one process, with the library that several would use."""

    def reduce() -> dict[str, Any]:
        library = "nccl" if session.is_gpu else "gloo"
        with tempfile.TemporaryDirectory() as folder:
            distributed.init_process_group(
                library, init_method=f"file://{folder}/store", rank=0, world_size=1
            )
            try:
                value = torch.full((1,), 3.0, device=session.device)
                distributed.all_reduce(value)
                synchronize(session.device)
            finally:
                distributed.destroy_process_group()
        if float(value) != 3:
            raise RuntimeError(f"the sum of one process's 3 is {float(value)}")
        return {"library": library}

    yield "one process", reduce


def measure_call(session: Session, act: Callable[[], object]) -> dict[str, Any]:
    """Return the least of five times in ms, after two calls, and the peak memory in MiB."""
    for _ in range(2):
        act()
    if session.is_gpu:
        torch.cuda.reset_peak_memory_stats()
    ms = 1e3 * min(time_once(act, session.device) for _ in range(5))
    peak = torch.cuda.max_memory_allocated() / 2**20 if session.is_gpu else None
    return {"ms": ms, "mib": peak}


def list_speeds(session: Session) -> Iterator[Line]:
    """Time a layer of each encoding, forward and backward in bfloat16."""
    roofs: dict[int, dict[str, Any]] = {}
    heads = 1 if session.small else 12

    def measure_roof(length: int) -> dict[str, Any]:
        size = (1, heads, length, HEAD_DIM)
        q, k, v = (
            torch.randn(size, device=session.device, dtype=HALF, requires_grad=True)
            for _ in range(3)
        )

        def attend() -> None:
            F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()

        roofs[length] = measure_call(session, attend)
        return roofs[length]

    def measure_layer(name: str, length: int) -> dict[str, Any]:
        dim = heads * HEAD_DIM
        layer = build_layer(name, length, dim, heads).to(session.device)
        x = torch.randn(1, length, dim, device=session.device)
        facts = measure_call(session, lambda: train(layer, x, dtype=HALF))
        for key, value in roofs[length].items():
            if value:
                facts[f"{key} of sdpa"] = facts[key] / value
        return facts

    for length in (128,) if session.small else (2048, 8192):
        yield f"sdpa {length}", lambda length=length: measure_roof(length)
        for name in session.texts:
            yield f"{name} {length}", lambda n=name, length=length: measure_layer(n, length)


def list_steps(session: Session) -> Iterator[Line]:
    """Time training steps of models, and of their counterparts in other libraries."""

    def measure_step(contender: Any, workload: Workload) -> dict[str, Any]:
        ready = TrainMeasure(workload.shape.unit).prepare(contender, workload)
        ready.run()
        seconds = min(ready.run() for _ in range(3))
        return {"ms": 1e3 * seconds, "per second": ready.facts.amount / seconds}

    for title in ("lm_toy", "vit_toy") if session.small else ("lm_base", "vit_b"):
        workload = Workload(shape=SHAPES[title], device=session.device)
        names = ("rope", "alibi", "fox", "t5") if title.startswith("lm") else ("learned",)
        ours = [build_contender([Choice(name)]) for name in names]
        peers = build_peers(workload.shape, names)
        for one in [*ours, *peers]:
            yield f"{title} {one.name}", lambda c=one, w=workload: measure_step(c, w)


def list_images(session: Session) -> Iterator[Line]:
    """Count the images per second that are augmented on the device."""
    recipes = {
        "flips": Augmentation(flip=0.5),
        "flips, randaugment, mixup": Augmentation(flip=0.5, randaugment=1, mixup=0.8),
    }
    count = 4 if session.small else 256

    def augment(augmentation: Augmentation) -> dict[str, Any]:
        size = (count, 3, 224, 224)
        images = torch.randint(0, 256, size, dtype=torch.uint8, device=session.device)
        labels = torch.zeros(count, dtype=torch.long, device=session.device)
        change = ImageTransform(3, [0.5], [0.5], augmentation)

        def act() -> None:
            change(images, labels, training=True, classes=1000)

        facts = measure_call(session, act)
        return {**facts, "images per second": 1e3 * count / facts["ms"]}

    for title, augmentation in recipes.items():
        yield title, lambda a=augmentation: augment(a)


def list_epochs(session: Session) -> Iterator[Line]:
    """Train an epoch of CIFAR-10 with the command that a user would give."""

    def fit() -> dict[str, Any]:
        if session.cifar10 is None:
            raise Skipped("pass the folder of its parquet files as --cifar10")
        words = ["-m", "zoo", "fit", "vit_comrope_cifar10", f"data.path={session.cifar10}"]
        words += ["trainer.max_epochs=1", f"trainer.accelerator={session.device}", "--json"]
        words += ["trainer.fast_dev_run=true"] if session.small else []
        left = session.limit - (time.monotonic() - session.began)
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            done = subprocess.run(
                [sys.executable, *words, "--run-dir", folder + "/run"],
                capture_output=True,
                text=True,
                timeout=left,
            )
            seconds = time.monotonic() - began
        if done.returncode:
            raise RuntimeError(done.stderr[-300:])
        return {"seconds": seconds, "metrics": json.loads(done.stdout).get("metrics")}

    yield "vit_comrope_cifar10", fit


PARTS = {
    "values": list_values,
    "flex": list_flex,
    "compile": list_compiled,
    "waits": list_waits,
    "fits": list_fits,
    "nccl": list_reductions,
    "speed": list_speeds,
    "steps": list_steps,
    "images": list_images,
    "cifar10": list_epochs,
}


def describe_machine(session: Session) -> tuple[str, dict[str, Any]]:
    """Return the name of the device, and its driver, libraries and memory."""
    facts: dict[str, Any] = {"torch": torch.__version__, "zoo": zoo.__version__}
    if not session.is_gpu:
        return "cpu", facts
    with suppress(ImportError):
        facts["triton"] = import_module("triton").__version__
    with suppress(OSError, subprocess.SubprocessError):
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        facts["driver"] = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    properties = torch.cuda.get_device_properties(0)
    facts["cuda"], facts["gb"] = torch.version.cuda, properties.total_memory / 1e9
    facts["capability"] = f"{properties.major}.{properties.minor}"
    return properties.name, facts


def main(words: list[str] | None = None) -> int:
    """Run all parts; return 1 if a line failed or exceeds a limit, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("day_one.json"), help="the file of lines")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="few encodings and short inputs")
    parser.add_argument("--limit", type=float, default=540.0, help="seconds for all parts")
    parser.add_argument("--cifar10", type=Path, help="folder of CIFAR-10 as parquet files")
    session = Session(parser.parse_args(words))
    session.write("machine", *describe_machine(session))
    for part, make_lines in PARTS.items():
        try:
            session.run(part, make_lines(session))
        except Exception as error:
            session.write(part, "all", {"failed": f"{type(error).__name__}: {error}"[:300]})
    synchronize(session.device)
    session.write("end", "all parts", {"seconds": time.monotonic() - session.began})
    return int(any(is_failed(line) for line in session.lines))


def is_failed(line: dict[str, Any]) -> bool:
    """Return whether a line, or one of the passes that it lists, failed or exceeds a limit."""
    passes = [value for value in line.values() if isinstance(value, dict)]
    return "failed" in line or "exceeds" in line or any("failed" in one for one in passes)


if __name__ == "__main__":
    sys.exit(main())
