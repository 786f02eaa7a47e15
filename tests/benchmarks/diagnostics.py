"""What it costs to look at attention while training: pairs of whole runs, with and without, one after the other.

    python tests/benchmarks/diagnostics.py [recipe] [pairs] [key=value ...]

Each run is a process of its own; the two of a pair take turns to be first. Told are the seconds of training, validation
included, the ratio of each pair and their median, the share that the run itself has measured of its captures, and whether
both ended with the same weights. By default vit_comrope for ten epochs, five pairs.
"""

import csv
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

RECIPE, PAIRS, SHORT = "vit_comrope", 5, ("trainer.max_epochs=10",)


def run(recipe: str, given: list[str], place: Path) -> float:
    """Seconds of training."""
    words = [sys.executable, "-m", "zoo", "fit", recipe, *given, "--run-dir", str(place), "--json"]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    return 60 * json.loads(done.stdout)["minutes"]


def weights(place: Path) -> dict[str, torch.Tensor]:
    return torch.load(place / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]


def shares(place: Path) -> list[float]:
    with (place / "metrics.csv").open() as file:
        return [
            float(row["perf/diagnostics_share"])
            for row in csv.DictReader(file)
            if row.get("perf/diagnostics_share")
        ]


def pair(recipe: str, given: list[str], number: int, folder: Path) -> float:
    """The ratio with / without."""
    places = {True: folder / f"{number}-looking", False: folder / f"{number}-alone"}
    seconds: dict[bool, float] = {}
    for looking in (bool(number % 2), not number % 2):
        more = [] if looking else ["diagnostics.every_n_steps=null"]
        seconds[looking] = run(recipe, [*given, *more], places[looking])
    one, other = (weights(place) for place in places.values())
    same = one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
    overheads = shares(places[True])
    print(
        f"{seconds[True]:8.1f} s  {seconds[False]:8.1f} s  {seconds[True] / seconds[False]:.4f}"
        f"  {len(overheads)} captures, {100 * (overheads or [0.0])[-1]:.2f} % of the time, "
        f"weights {'the same' if same else 'NOT the same'}",
        flush=True,
    )
    return seconds[True] / seconds[False]


def main(recipe: str, pairs: int, given: list[str]) -> None:
    print(f"{recipe} {' '.join(given)}\n   looking       alone   ratio")
    with tempfile.TemporaryDirectory() as folder:
        ratios = [pair(recipe, given, number, Path(folder)) for number in range(pairs)]
    print(f"median ratio {statistics.median(ratios):.4f}")


if __name__ == "__main__":
    from arguments import make_parser, parse_with_overrides, positive

    parser = make_parser(__doc__)
    parser.add_argument("recipe", nargs="?", default=RECIPE)
    parser.add_argument("pairs", nargs="?", type=positive, default=PAIRS)
    known, overrides = parse_with_overrides(parser)
    main(known.recipe, known.pairs, overrides or list(SHORT))
