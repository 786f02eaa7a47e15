"""Training steps on an idle machine, and beside one and three busy processes.

    python tests/benchmarks/busy_machine.py [recipe] [rounds] [seconds] [key=value ...]

Models take turns: with one thread and with as many as there are cores, each as the command line runs
it and with OpenMP's own spinning. Each process is started once, and in each round all of them count
their steps for some seconds, on a batch that is there already. `share` is the median over rounds of
steps, divided by those of the same model in the idle part of the round and by the share of the
processor that its threads have among all that run; 0.5 or more beside three is asked for. `idle` is
the median ratio of idle steps to those with OpenMP's own spinning; 0.95 or more is asked for.
"""

import contextlib
import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from zoo.config.command_line import parse_overrides
from zoo.run.machine import count_cores

ROOT = Path(__file__).parent.parent.parent
RECIPE, ROUNDS, SECONDS = "vit_comrope", 5, 4.0
BUSY = (0, 1, 3)
WARM = 3


def train(recipe: str, threads: int, is_limited: bool, words: list[str]) -> None:
    """Count the steps of as many seconds as each line of standard input says."""
    from zoo.utils import keep_freed_memory, limit_spinning

    if is_limited:
        limit_spinning()
    keep_freed_memory()
    import torch

    from zoo.run.build import build_data, build_task
    from zoo.run.load import load_recipe

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    experiment = load_recipe(recipe, parse_overrides(words))
    data = build_data(experiment)
    data.setup("fit")
    task = build_task(experiment, data.spec)
    vars(task).update(log=lambda *_, **__: None)
    batch = next(iter(data.train_dataloader()))
    optimizer = task.optim.configure(task.model, 1000)["optimizer"]

    def step() -> None:
        optimizer.zero_grad()
        loss = task.training_step(batch, 0)
        assert isinstance(loss, torch.Tensor)
        loss.backward()
        optimizer.step()

    for _ in range(WARM):
        step()
    print("ready", flush=True)
    for line in sys.stdin:
        count, ends = 0, time.perf_counter() + float(line)
        begins = time.perf_counter()
        while time.perf_counter() < ends:
            step()
            count += 1
        print(count / (time.perf_counter() - begins), flush=True)


class Model:
    """A model in a process of its own, which waits while others are measured."""

    def __init__(self, recipe: str, threads: int, is_limited: bool, words: list[str]) -> None:
        self.threads, self.is_limited = threads, is_limited
        own = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS"}
        environment = {key: value for key, value in os.environ.items() if key not in own}
        arguments = ["--train", recipe, str(threads), str(int(is_limited)), *words]
        self.process = subprocess.Popen(
            [sys.executable, __file__, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**environment, "PYTHONPATH": str(ROOT)},
        )
        self.read()

    def read(self) -> str:
        """Return the next line that the process writes."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the process has ended"
        return line

    def measure(self, seconds: float) -> float:
        """Return its steps per second."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        return float(self.read())

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep so many other processes busy."""
    spin = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(spin) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def find_share(threads: int, others: int, cores: int) -> float:
    """Return the processor time of threads beside others, as a part of what they have alone."""
    alone = min(threads, cores)
    together = min(1.0, cores / (threads + others)) * threads
    return min(1.0, together / alone)


def main(recipe: str, rounds: int, seconds: float, words: list[str]) -> None:
    """Measure, and print a row for each model."""
    cores = count_cores()
    kinds = list(itertools.product(sorted({1, cores}), (True, False)))
    models = [Model(recipe, *kind, words) for kind in kinds]
    found: dict[tuple[int, bool, int], list[float]] = {}
    for _ in range(rounds):
        for others in BUSY:
            with busy(others):
                for model in models:
                    key = (model.threads, model.is_limited, others)
                    found.setdefault(key, []).append(model.measure(seconds))
    for model in models:
        model.close()

    print(f"{recipe}, {cores} cores, {rounds} rounds of {seconds:g} s, steps per second")
    print("threads  spinning   idle  beside 1  share  beside 3  share  idle ratio")
    for threads, is_limited in kinds:
        rates = {others: found[threads, is_limited, others] for others in BUSY}
        row = f"{threads:7}  {'limited' if is_limited else 'default':8}"
        for others in BUSY:
            row += f"  {statistics.median(rates[others]):{5 if not others else 8}.2f}"
            if others:
                share = find_share(threads, others, cores)
                pairs = zip(rates[others], rates[0], strict=True)
                ratios = [one / (idle * share) for one, idle in pairs]
                row += f"  {statistics.median(ratios):5.2f}"
        pairs = zip(found[threads, True, 0], found[threads, False, 0], strict=True)
        ratio = statistics.median(one / other for one, other in pairs)
        print(row + (f"  {ratio:10.2f}" if is_limited else ""))


if __name__ == "__main__":
    # a process of a measurement, which takes its turns by lines of its standard input
    if sys.argv[1:2] == ["--train"]:
        name, threads, limited, *options = sys.argv[2:]
        train(name, int(threads), bool(int(limited)), options)
        sys.exit()
    from arguments import make_parser, parse_with_overrides, positive

    parser = make_parser(__doc__)
    parser.add_argument("recipe", nargs="?", default=RECIPE)
    parser.add_argument("rounds", nargs="?", type=positive, default=ROUNDS)
    parser.add_argument("seconds", nargs="?", type=float, default=SECONDS)
    known, overrides = parse_with_overrides(parser)
    main(known.recipe, known.rounds, known.seconds, overrides)
