"""What denormal numbers cost in a training step, in seconds of the processor, on a machine that others use too.

    python tests/benchmarks/denormals.py [rounds]

A training step of lm_small with each encoding, one thread, as torch computes it and with denormal numbers flushed to zero.
Rounds are interleaved; the table has medians of seconds, and of ratios to rope within a round.
"""

import statistics
import time

import torch

from zoo.benchmark.measures import TrainingStep
from zoo.benchmark.models import build_contender
from zoo.benchmark.protocol import SHAPES, Workload, run_rounds
from zoo.options import Choice
from zoo.run.machine import read_processor
from zoo.utils import keep_freed_memory

ENCODINGS = ("rope", "alibi", "fox", "cope", "t5")
MODES = {"computed": False, "flushed": True}


def make_trials(name):
    """Return a step of a model in each mode, which measures its seconds."""
    training = TrainingStep(build_contender([Choice(name)]), Workload(shape=SHAPES["lm_small"]))

    def make(mode):
        def run():
            torch.set_flush_denormal(mode)
            start = time.process_time()
            training.step()
            return time.process_time() - start

        return run

    return [make(mode) for mode in MODES.values()]


def main(count):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    keep_freed_memory()
    rounds = [*run_rounds([trial for name in ENCODINGS for trial in make_trials(name)], count)]
    print(f"{read_processor()}, torch {torch.__version__}, {count} rounds")
    print(f"{'':8s}" + "".join(f"{mode:>10s}  ratio" for mode in MODES))
    for row, name in enumerate(ENCODINGS):
        line = f"{name:8s}"
        for column in range(len(MODES)):
            place = len(MODES) * row + column
            seconds = statistics.median(found[place] for found in rounds)
            ratio = statistics.median(found[place] / found[column] for found in rounds)
            line += f"{seconds:10.2f} {ratio:6.2f}"
        print(line)


if __name__ == "__main__":
    from arguments import make_parser, positive

    parser = make_parser(__doc__)
    parser.add_argument("rounds", nargs="?", type=positive, default=5)
    main(parser.parse_args().rounds)
