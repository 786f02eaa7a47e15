"""Record the time of an attention layer with each encoding: `python docs/build/record_layers.py`.

Each shape is measured as `zoo bench` does, on one thread. The layers take turns and each ratio is
taken within a round, so that other work on the machine widens the quartiles but shifts no median.
`zoo show ENCODING` and the pages of encodings read the files, `python docs/build/pages.py` writes
the pages anew.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from zoo.benchmark.recorded_layers import FOLDER, MEASURE

DOCS = Path(__file__).parents[1]
RECORDED = DOCS.parent / "zoo" / FOLDER
PICTURES = DOCS / "speed"
LENGTHS = {"lm_small": 512, "vit_s": 224}
"""{shape: tokens, or pixels along a side}"""
ROUNDS = 20


def record_shape(shape: str, rounds: int) -> None:
    """Measure all encodings that a shape allows; write its record and its figure."""
    words = [f"shape={shape}", f"lengths={LENGTHS[shape]}", "device=cpu", "against=none"]
    words += [f"measures={MEASURE}", f"rounds={rounds}", "peers=false"]
    with tempfile.TemporaryDirectory() as folder:
        # the command, so that the process is set up as that of everybody who repeats it
        subprocess.run(
            [sys.executable, "-m", "zoo", "bench", *words, f"to={folder}/bench"],
            check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        RECORDED.mkdir(exist_ok=True)
        for suffix, target in ((".json", RECORDED), (".png", PICTURES)):
            made = Path(folder, "bench", "bench").with_suffix(suffix)
            shutil.copy(made, target / f"{shape}_{MEASURE}{suffix}")


def main() -> None:
    """Record the shapes that the command line names, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help=", ".join(LENGTHS))
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"{ROUNDS} by default")
    chosen = parser.parse_args()
    for shape in chosen.shapes or LENGTHS:
        record_shape(shape, chosen.rounds)


if __name__ == "__main__":
    main()
