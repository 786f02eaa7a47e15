"""Kill a tiny run at random moments, of training and of saving, and have it end as if nothing had been.

    python tests/benchmarks/kill.py [kills] [seed]

A run is started with `--resume auto`, killed (SIGKILL), and started again until it ends; then the next one, until there
were so many kills. Each ends with the state of a run that nobody killed, bit by bit, and leaves no unfinished file. Every
second run saves in the background, and about every second kill waits for a file that is half written; files are slow to become
safe. $TMPDIR is on another file system, where there is one. Runs are forked off a process that has imported everything.
"""

import os
import random
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
import torch.utils.tensorboard
from tiny import MORE, TINY
from training import fit

from zoo.run import checkpoint

RECIPE = [*TINY, *MORE]
STATE = (
    "state_dict",
    "optimizer_states",
    "lr_schedulers",
    "loops",
    "rng_states",
    "loader",
    "best_metric",
    "global_step",
    "epoch",
)
SLOW = 0.05  # seconds, for each file and each folder that has to be safe on the disk


def start_fit(run: Path, *overrides: str) -> int:
    """The process of a run that goes on from whatever lies there; what it tells goes to a file."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        with Path(f"{run}.log").open("a") as log_file:
            os.dup2(log_file.fileno(), sys.stderr.fileno())
        synchronise = os.fsync
        os.fsync = lambda handle: (time.sleep(SLOW), synchronise(handle))[1]
        fit("vit_comrope", [*RECIPE, *overrides], run, "auto")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def wait_for_end(process: int, run: Path) -> None:
    assert os.waitpid(process, 0)[1] == 0, Path(f"{run}.log").read_text()


def kill_after(process: int, run: Path, seconds: float, saving: bool) -> bool:
    """Whether the process was still there to be killed after so long, or when it next had a file half written."""
    time.sleep(seconds)
    while (
        not (over := os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT))
        and saving
        and not list_unfinished(run)
    ):
        time.sleep(SLOW / 20)
    if over:
        wait_for_end(process, run)
        return False
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return True


def list_unfinished(run: Path) -> list[Path]:
    return list(run.rglob("*.writing"))


def same(one: Any, two: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == two.dtype and torch.equal(one, two)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    return bool(one == two)


def compare(whole: Path, run: Path) -> None:
    for name in ("last", "best"):
        one, two = (
            checkpoint.read(folder / "checkpoints" / f"{name}.ckpt") for folder in (whole, run)
        )
        for key in STATE:
            assert same(one[key], two[key]), (
                f"{run} {name}: {key} is not that of the run that was not killed"
            )
    assert not list_unfinished(run)


def main(kills: int, seed: int) -> None:
    torch.set_num_threads(1)
    draw, done, saving, runs = random.Random(seed), 0, 0, 0
    whole, began = Path("whole"), time.monotonic()
    wait_for_end(start_fit(whole), whole)
    length = time.monotonic() - began  # seconds
    while done < kills:
        run, runs, alive = Path(f"run-{runs}"), runs + 1, False
        more = f"trainer.async_checkpoint={str(runs % 2 == 0).lower()}"
        while not alive and done < kills:
            alive = not kill_after(
                start_fit(run, more), run, draw.uniform(0, length), draw.random() < 0.5
            )
            done += not alive
            saving += bool(list_unfinished(run))
        if alive:
            length *= 0.8  # it is the pace of this machine now that counts
        else:
            wait_for_end(start_fit(run, more), run)
        compare(whole, run)
    print(
        f"{done} kills, {saving} of them in the middle of a file, in {runs} runs: each ended as if it had not been"
    )


def elsewhere(kills: int = 50, seed: int = 0) -> None:
    """`main` in a folder of its own, and with nothing left of it in $TMPDIR."""
    memory = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory(dir=memory) as other:
        os.environ["TMPDIR"], tempfile.tempdir = other, None
        os.chdir(home)
        main(kills, seed)
        assert not list(Path(other).iterdir()), "something was left in $TMPDIR"


if __name__ == "__main__":
    from arguments import make_parser, positive

    parser = make_parser(__doc__)
    parser.add_argument("kills", nargs="?", type=positive, default=50)
    parser.add_argument("seed", nargs="?", type=int, default=0)
    known = parser.parse_args()
    elsewhere(known.kills, known.seed)
