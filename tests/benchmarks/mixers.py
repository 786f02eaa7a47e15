"""Time and memory of one causal layer of each mixer, forward and backward, beside softmax attention.

    python tests/benchmarks/mixers.py [rounds] [--lengths 256 1024]

D 256, 4 heads, batch 1, float32, one thread; attention and linear attention have RoPE. The layers
take turns, and ratios are medians of those within a round. Memory is what torch has allocated at
most beyond what it held before.
"""

import statistics

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

LENGTHS = (256, 512, 1024, 2048, 4096, 8192)
DIMS = zoo.Dims(256, 4)
SOFTMAX = "softmax"


def make_layers() -> dict[str, nn.Module]:
    """Return attention and every mixer by name; gated_delta with both decays."""
    entries = {name: Choice(name, {}) for name in registry.names("mixers")}
    entries["gated_delta, channel"] = Choice("gated_delta", {"decay": "channel"})
    attention = SelfAttention(DIMS, causal=True)
    mixers = {name: make_mixer_factory(entry) for name, entry in entries.items()}
    return {SOFTMAX: attention} | {
        name: make(DIMS, LayerOptions()) for name, make in mixers.items()
    }


def make_trial(layer: nn.Module, length: int):
    """Return a trial: one pass of a layer on random states [1, N, D], and back."""
    chain = Chain.of(zoo.encoding("rope", DIMS))
    states, pos = torch.randn(1, length, DIMS.dim), torch.arange(length)[:, None].float()

    def run() -> float:
        tokens = chain.embed(Tokens.at(states.clone().requires_grad_(), pos, ordered=True))

        def act() -> None:
            out = layer(tokens, chain, Context())
            (out[0] if isinstance(out, tuple) else out).x.square().mean().backward()

        seconds = time_once(act, "cpu")
        layer.zero_grad()
        return seconds

    return run


def main(rounds: int, lengths: list[int]) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    print(f"torch {torch.__version__}, {rounds} rounds")
    print("tokens  layer                 median ms  times softmax  peak MiB")
    layers = make_layers()
    for length in lengths:
        trials = {name: make_trial(layer, length) for name, layer in layers.items()}
        taken = [
            dict(zip(trials, row, strict=True)) for row in run_rounds([*trials.values()], rounds)
        ]
        for name, trial in trials.items():
            median = statistics.median(row[name] for row in taken)
            ratio = statistics.median(row[name] / row[SOFTMAX] for row in taken)
            peak = measure_peak_memory(trial, "cpu") / 2**20
            print(
                f"{length:6d}  {name:20s} {median * 1e3:10.1f} {ratio:14.2f} {peak:9.1f}",
                flush=True,
            )


if __name__ == "__main__":
    from arguments import make_parser, positive

    parser = make_parser(__doc__)
    parser.add_argument("rounds", nargs="?", type=positive, default=7)
    parser.add_argument("--lengths", nargs="*", type=positive, default=LENGTHS)
    known = parser.parse_args()
    main(known.rounds, known.lengths)
