"""Memory and speed of training with and without activation checkpointing, bfloat16 and compilation, in one table.

    python tests/benchmarks/training.py [recipe] [steps] [key=value ...]

Each of the eight rows is a process of its own, on a GPU where there is one. After two steps of warm-up, which compile, rows
take their steps in turns, so that a machine that changes its pace changes it for all. Steps are those of the task, with
the recipe's optimizer, on one batch that is there already. Memory on a GPU is the peak of what torch has allocated; on a CPU
it is the peak of resident memory in the steps over what the process holds between them: activations and gradients,
without the weights, the optimizer's state and what the compiler holds. By default: three blocks, images of 32 x 32,
batches of 32.
"""

import contextlib
import ctypes
import gc
import itertools
import resource
import statistics
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from zoo.config.command_line import parse_overrides
from zoo.models.transformer import enable_activation_checkpointing
from zoo.run.build import build_data, build_task
from zoo.run.load import load_recipe

RECIPE, STEPS, SIZES = "vit_rope_axial", 5, ("model.depth=3", "data.size=32", "data.batch_size=32")
ROWS = tuple(itertools.product((False, True), ("32-true", "bf16-mixed"), (False, True)))
WARM, MB = 2, 2**20


def resident() -> float:
    """MB that the process holds now, once what is free was given back; 0 where nobody knows."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        return _status("VmRSS")
    return _peak()


def _peak() -> float:
    with contextlib.suppress(OSError, StopIteration):
        return _status("VmHWM")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024


def row(pipe: Connection, words: list[str], again: bool, precision: str, compiled: bool) -> None:
    """Take a step whenever asked, and tell its seconds and the peak so far in MB."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    recipe = load_recipe(words[0], parse_overrides(words[1:]))
    data = build_data(recipe)
    data.setup("fit")
    task = build_task(recipe, data.spec).to(device).train()
    vars(task).update(log=lambda *measured, **more: None)
    batch = type(task).transfer_batch_to_device(
        task, next(iter(data.train_dataloader())), device, 0
    )
    optimizer = task.optim.configure(task.model, 1000)["optimizer"]
    if again:
        enable_activation_checkpointing(task.model)
    if compiled:
        task.model.compile()
    held = 0.0
    for count in itertools.count():
        if pipe.recv() is None:
            return
        if count == WARM and device.type == "cpu":
            held = resident()
        if count == WARM and device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16-mixed"):
            loss = task.training_step(batch, 0)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize()
        took = time.perf_counter() - began
        pipe.send(
            (
                took,
                torch.cuda.max_memory_allocated() / MB if device.type == "cuda" else _peak() - held,
            )
        )


def main(words: list[str], steps: int) -> None:
    context, pipes = get_context("spawn"), []
    for options in ROWS:
        ours, theirs = context.Pipe()
        context.Process(target=row, args=(theirs, words, *options), daemon=True).start()
        pipes.append(ours)
        for _ in range(WARM):
            ours.send(True)
            ours.recv()
    found: list[list[tuple[float, float]]] = [[] for _ in ROWS]
    for _ in range(steps):
        for pipe, measured in zip(pipes, found, strict=True):
            pipe.send(True)
            measured.append(pipe.recv())
    for pipe in pipes:
        pipe.send(None)
    report(
        words,
        steps,
        [
            (max(mb for _, mb in measured), 1 / statistics.median(s for s, _ in measured))
            for measured in found
        ],
    )


def report(words: list[str], steps: int, found: list[tuple[float, float]]) -> None:
    where = (
        torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else f"CPU, {torch.get_num_threads()} of its cores"
    )
    print(f"{' '.join(words)}: torch {torch.__version__}, {where}, median of {steps} steps")
    print("checkpointing  precision   compile   peak MB   ratio   steps/s   ratio")
    for (again, precision, compiled), (mb, pace) in zip(ROWS, found, strict=True):
        row = f"{'yes' if again else 'no':13s}  {precision:10s}  {'yes' if compiled else 'no':7s}"
        print(f"{row} {mb:9.0f} {mb / found[0][0]:7.2f} {pace:9.3f} {pace / found[0][1]:7.2f}")


if __name__ == "__main__":
    from arguments import make_parser, parse_with_overrides, positive

    parser = make_parser(__doc__)
    parser.add_argument("recipe", nargs="?", default=RECIPE)
    parser.add_argument("steps", nargs="?", type=positive, default=STEPS)
    known, overrides = parse_with_overrides(parser)
    sizes = SIZES if known.recipe == RECIPE else ()
    main([known.recipe, *(overrides or sizes)], known.steps)
