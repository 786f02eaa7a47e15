"""Time of one attention layer, forward and backward, under each encoding, relative to none.

    python tests/benchmarks/layer.py [images|text] [rounds]

Images have ViT-S shapes: D 384, H 6, 196 tokens, batch 8, float32; text D 384, H 6, 256 tokens, batch 8, under a causal mask.
Rounds are interleaved, so that a machine that changes its pace
changes it for all; medians and minima over rounds are printed, with their ratios to `none`.
"""

import statistics
import sys
import time

import torch

import zoo

IMAGES = ("none", "rope_axial", "rope_mixed", "comrope_ap", "comrope_ld", "liere")
TEXT = (
    "none", "rope", "alibi", "fox", "tupe", "tape", "t5", "kerple", "fire", "transformer_xl", "shaw", "cope",
    "stickbreaking", "kerple+dape", "path", "path+fox",
)  # fmt: skip


def step(layer: torch.nn.Module, x: torch.Tensor) -> float:
    x = x.clone().requires_grad_()
    layer.zero_grad()
    start = time.perf_counter()
    layer(x).square().mean().backward()
    return time.perf_counter() - start


def layers_for(kind: str) -> tuple[dict[str, torch.nn.Module], torch.Tensor]:
    """A layer for each encoding, and states to read."""
    if kind == "images":
        dims = zoo.Dims(384, 6, axes=2, length=(14, 14))
        return {name: zoo.Attention(dims, name) for name in IMAGES}, torch.randn(8, 196, 384)
    dims = zoo.Dims(384, 6, length=256, depth=2)
    return {name: zoo.Attention(dims, name.split("+"), causal=True) for name in TEXT}, torch.randn(8, 256, 384)


def main(kind: str, rounds: int) -> None:
    torch.manual_seed(0)
    layers, x = layers_for(kind)
    for layer in layers.values():
        step(layer, x)
    times: dict[str, list[float]] = {name: [] for name in layers}
    for _ in range(rounds):
        for name, layer in layers.items():
            times[name].append(step(layer, x))
    median = {name: statistics.median(found) for name, found in times.items()}
    least = {name: min(found) for name, found in times.items()}
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {rounds} rounds")
    print("encoding         median ms   ratio    least ms   ratio")
    for name in layers:
        ratios = median[name] / median["none"], least[name] / least["none"]
        print(f"{name:15s} {median[name] * 1e3:10.1f} {ratios[0]:7.2f} {least[name] * 1e3:11.1f} {ratios[1]:7.2f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "images", int(sys.argv[2]) if len(sys.argv) > 2 else 20)
