"""Record time and memory of a layer of each mixer: `python docs/build/record_mixers.py [ROUNDS]`.

One causal layer, forward and backward: D 256, 4 heads, one text, float32, one thread. Attention and
linear attention have RoPE. The layers take turns, and ratios are medians of those within a round,
so that other work on the machine shifts no ratio. Memory is what torch has allocated at most beyond
what it held before. The page of mixers shows docs/build/mixers_speed.json.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import zoo
from zoo import registry
from zoo.attention.chain import Chain
from zoo.attention.layer import Context, LayerOptions, SelfAttention
from zoo.attention.mixer import make_mixer_factory
from zoo.attention.tokens import Tokens
from zoo.benchmark.protocol import measure_peak_memory, run_rounds, time_once
from zoo.options import Choice

RECORD = Path(__file__).with_name("mixers_speed.json")
LENGTHS = (256, 512, 1024, 2048, 4096, 8192)
DIMS = zoo.Dims(256, 4)
SOFTMAX = "softmax"
ROUNDS = 5


def make_layers() -> dict[str, nn.Module]:
    """Return attention and every mixer by name; gated_delta with both decays."""
    entries = {name: Choice(name, {}) for name in registry.names("mixers")}
    entries["gated_delta, decay channel"] = Choice("gated_delta", {"decay": "channel"})
    layers = {name: make_mixer_factory(one)(DIMS, LayerOptions()) for name, one in entries.items()}
    return {SOFTMAX: SelfAttention(DIMS, causal=True), **layers}


def make_trial(layer: nn.Module, length: int) -> Callable[[], float]:
    """Return a trial: one pass of a layer on random states [1, N, D], and back."""
    chain = Chain.of(zoo.encoding("rope", DIMS))
    states, pos = torch.randn(1, length, DIMS.dim), torch.arange(length)[:, None].float()

    def run() -> float:
        tokens = chain.embed(Tokens.at(states.clone().requires_grad_(), pos, ordered=True))

        def act() -> None:
            out = layer(tokens, chain, Context())
            # attention returns extra values, too
            (out[0] if isinstance(out, tuple) else out).x.square().mean().backward()

        seconds = time_once(act, "cpu")
        layer.zero_grad()
        return seconds

    return run


def main(rounds: int) -> None:
    """Measure all layers at all lengths, and write the record."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    layers, rows = make_layers(), []
    for length in LENGTHS:
        trials = {name: make_trial(layer, length) for name, layer in layers.items()}
        columns = run_rounds([*trials.values()], rounds)
        taken = [dict(zip(trials, column, strict=True)) for column in columns]
        for name, trial in trials.items():
            row = {
                "tokens": length,
                "layer": name,
                "milliseconds": 1e3 * statistics.median(one[name] for one in taken),
                "ratio": statistics.median(one[name] / one[SOFTMAX] for one in taken),
                "mib": measure_peak_memory(trial, "cpu") / 2**20,
            }
            print(row, flush=True)
            rows.append(row)
    record = {"torch": torch.__version__, "rounds": rounds, "rows": rows}
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
