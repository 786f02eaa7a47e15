"""Time and memory of one causal layer, forward and backward, with sums over keys and with a softmax.

    python tests/benchmarks/linear.py [rounds]

D 256, H 4, batch 1, float32, one thread, no positions. Rounds are interleaved; medians over them are printed. Memory is what
torch has allocated at most beyond what it held before.
"""

import statistics

import torch

import zoo
from zoo.attention.layer import SelfAttention
from zoo.attention.linear import KINDS
from zoo.benchmark.measures import build_layer_trial
from zoo.benchmark.protocol import measure_peak_memory, run_rounds

LENGTHS = (512, 2048, 8192)


def layer(kernel: str, length: int) -> zoo.Attention:
    made = zoo.Attention(zoo.Dims(256, 4, length=length), "none", causal=True)
    made.layer = SelfAttention(made.layer.dims, causal=True, attention=kernel)
    return made


def main(count: int) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    print(
        f"torch {torch.__version__}, {count} rounds\ntokens  kernel    median ms   ratio   most MiB"
    )
    for length in LENGTHS:
        runs = {kind: build_layer_trial(layer(kind, length), 1, "cpu") for kind in KINDS}
        medians = [
            statistics.median(column)
            for column in zip(*run_rounds([*runs.values()], count), strict=True)
        ]
        plain = medians[[*runs].index("softmax")]
        for (kernel, run), seconds in zip(runs.items(), medians, strict=True):
            most = measure_peak_memory(run, "cpu") / 2**20
            print(
                f"{length:6d}  {kernel:8s} {seconds * 1e3:10.1f} {seconds / plain:7.2f} {most:10.1f}"
            )


if __name__ == "__main__":
    from arguments import make_parser, positive

    parser = make_parser(__doc__)
    parser.add_argument("rounds", nargs="?", type=positive, default=7)
    main(parser.parse_args().rounds)
