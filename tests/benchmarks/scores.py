"""What sinks and soft caps cost, in seconds of the processor, on a machine that others use too.

    python tests/benchmarks/scores.py [rounds]

A training step of lm_small with rope, one thread, with each option; rounds are interleaved, and the median of ratios within a
round is printed. Memory is what torch allocates at most in one attention, forward and backward, beyond what it held before:
batch 1, 8 heads of 64 channels.
"""

import statistics
import time

import torch

from zoo.attention.backends.dispatch import attend
from zoo.attention.call import AttentionCall
from zoo.attention.tokens import Tokens
from zoo.benchmark.measures import TrainingStep
from zoo.benchmark.models import SCORES, build_contender
from zoo.benchmark.protocol import SHAPES, Workload, measure_peak_memory, run_rounds
from zoo.options import Choice
from zoo.utils import keep_freed_memory

OPTIONS = (None, "sinks", "softcap")
LENGTHS = (1024, 2048, 4096)


def make_trial(option):
    training = TrainingStep(
        build_contender([Choice("rope")], option), Workload(shape=SHAPES["lm_small"])
    )

    def run():
        start = time.process_time()
        training.step()
        return time.process_time() - start

    return run


def measure_attention(length, option):
    q, k, v = (torch.randn(1, 8, length, 64).requires_grad_() for _ in range(3))
    keys = Tokens.at(torch.zeros(1, length, 0), torch.arange(float(length))[:, None], ordered=True)
    options = dict(SCORES[option]) if option else {}
    if "sinks" in options:
        options["sinks"] = torch.zeros(8, requires_grad=True)
    call = AttentionCall(q, k, v, q, keys, keys, True, 64**-0.5, **options)
    return measure_peak_memory(lambda: attend(call)[0].square().mean().backward(), "cpu")


def main(count):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    keep_freed_memory()
    rounds = [*run_rounds([make_trial(one) for one in OPTIONS], count)]
    print(f"torch {torch.__version__}, {count} rounds\n{'':8s} seconds  ratio")
    for number, option in enumerate(OPTIONS):
        seconds = statistics.median(row[number] for row in rounds)
        ratio = statistics.median(row[number] / row[0] for row in rounds)
        print(f"{option or 'plain':8s} {seconds:7.2f} {ratio:6.3f}")
    for length in LENGTHS:
        found = [f"{measure_attention(length, one) / 2**20:6.1f}" for one in OPTIONS]
        print(
            f"MiB at {length} tokens: {' '.join(found)}; all pairs {8 * length**2 * 4 / 2**20:.0f}"
        )


if __name__ == "__main__":
    from arguments import make_parser, positive

    parser = make_parser(__doc__)
    parser.add_argument("rounds", nargs="?", type=positive, default=5)
    main(parser.parse_args().rounds)
