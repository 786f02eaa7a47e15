"""Time and memory of one causal layer, forward and backward, with sums over keys and with a softmax.

    python tests/benchmarks/linear.py [rounds]

D 256, H 4, batch 1, float32, one thread, no positions. Rounds are interleaved; medians over them are printed. Memory is what
the process held at most beyond what it held before (Linux).
"""

import ctypes
import gc
import re
import statistics
import sys
import time
from pathlib import Path

import torch

import zoo
from zoo.attention.chain import Chain
from zoo.attention.context import Context
from zoo.attention.layer import SelfAttention
from zoo.attention.linear import KERNELS
from zoo.attention.tokens import Tokens

DIMS = zoo.Dims(256, 4)
LENGTHS = (512, 2048, 8192)


def held(field: str) -> float:
    """MiB of this process, VmRSS now or VmHWM at most."""
    return int(re.search(rf"{field}:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024


def step(layer: SelfAttention, tokens: Tokens) -> tuple[float, float]:
    """Seconds, and MiB at most."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # give back what is free
    Path("/proc/self/clear_refs").write_text("5")  # forget the most so far
    before, start = held("VmRSS"), time.perf_counter()
    chain = Chain(DIMS, {})
    layer(tokens, chain, Context())[0].x.square().mean().backward()
    layer.zero_grad()
    return time.perf_counter() - start, held("VmHWM") - before


def main(rounds: int) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = {kernel: SelfAttention(DIMS, causal=True, kernel=kernel) for kernel in KERNELS}
    print(f"torch {torch.__version__}, {rounds} rounds\ntokens  kernel    median ms   ratio   most MiB")
    for length in LENGTHS:
        tokens = Tokens.at(torch.randn(1, length, 256), torch.arange(float(length))[:, None])
        found: dict[str, list[tuple[float, float]]] = {kernel: [] for kernel in KERNELS}
        for round_ in range(rounds + 1):
            for kernel, layer in layers.items():
                measured = step(layer, tokens)
                if round_:
                    found[kernel].append(measured)
        medians = {
            kernel: [statistics.median(column) for column in zip(*found[kernel], strict=True)] for kernel in KERNELS
        }
        for kernel, (seconds, most) in medians.items():
            print(f"{length:6d}  {kernel:8s} {seconds * 1e3:10.1f} {seconds / medians['softmax'][0]:7.2f} {most:10.1f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
