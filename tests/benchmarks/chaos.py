"""Disturb small comparisons with SIGKILL, and have each of them end as if nothing had been.

    python tests/benchmarks/chaos.py [comparisons] [seed]

In each comparison, SIGKILL ends a cell, the fork server or `zoo compare` itself at a random moment,
and a little later the command, too. Within ten seconds no process of it may be left. Then the same
command continues to its end, and the results equal those of a comparison that nobody disturbed.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
TARGETS = ("cell", "fork server", "zoo compare")
PATIENCE = 10  # seconds
# of the machine and of the moment, not of what was computed
CHANGING = {"created", "minutes", "step_seconds", "peak_memory", "command", "costs", "seconds"}
COMMAND = [
    *(sys.executable, "-m", "zoo", "compare", "vit_comrope", "encodings=[none,learned]"),
    *("seeds=2", "jobs=2", "model.dim=16", "model.depth=1", "model.heads=2", "model.patch_size=4"),
    *("data.test=0.4", "data.val=0.4", "data.batch_size=64", "trainer.max_epochs=10"),
    *("trainer.accelerator=cpu", "trainer.num_threads=1", "evaluate.resolutions=null"),
    "diagnostics.every_n_steps=null",
]


def start(folder: Path) -> subprocess.Popen[bytes]:
    """Start a comparison; its processes are known by a mark in their environment."""
    with Path(f"{folder}.log").open("ab") as output:
        return subprocess.Popen(
            [*COMMAND, f"to={folder}"],
            stdout=output,
            stderr=output,
            env={**os.environ, "ZOO_CHAOS": str(os.getpid())},
        )


def list_processes() -> dict[int, int]:
    """Return {process: its parent} of all comparisons that this program started."""
    mark, found = f"ZOO_CHAOS={os.getpid()}".encode(), {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                found[int(entry.name)] = int(parent)
        except OSError:
            # it has ended meanwhile
            continue
    return found


def choose_process(target: str, command: int) -> int | None:
    """Return a random process of one kind, by whose children there are; None without one."""
    parents = list_processes()
    servers = [pid for pid, parent in parents.items() if parent == command]
    cells = [pid for pid, parent in parents.items() if parent in servers]
    found = {"cell": cells, "fork server": servers, "zoo compare": [command]}[target]
    return random.choice(found) if found else None


def wait_until_gone() -> float:
    """Return after how many seconds no process was left."""
    began = time.monotonic()
    while left := list_processes():
        assert time.monotonic() - began < PATIENCE, f"processes {list(left)} are left"
        time.sleep(0.1)
    return time.monotonic() - began


def disturb(folder: Path, length: float) -> str:
    """Start a comparison, kill one of its processes, then the command; say what happened."""
    process, target = start(folder), random.choice(TARGETS)
    moment = random.uniform(0.3, 0.95) * length
    ends = time.monotonic() + moment
    while time.monotonic() < ends and process.poll() is None:
        time.sleep(0.05)
    victim = choose_process(target, process.pid) if process.poll() is None else None
    if victim is not None:
        os.kill(victim, signal.SIGKILL)
    if target != "zoo compare":
        # so that the command does something about it, before it is killed too
        time.sleep(random.uniform(0, 2))
    process.kill()
    process.wait()
    seconds = wait_until_gone()
    struck = f"{target} killed" if victim is not None else f"no {target} there"
    return f"{struck} after {moment:.1f} s, all processes gone {seconds:.1f} s later"


def complete(folder: Path) -> Any:
    """Run a comparison to its end and return its results without what changes from run to run."""
    process = start(folder)
    code = process.wait()
    assert code == 0, Path(f"{folder}.log").read_text()
    wait_until_gone()
    return strip(json.loads((folder / "results.json").read_text()))


def strip(value: Any) -> Any:
    """Remove the keys that change from run to run."""
    if isinstance(value, dict):
        return {key: strip(one) for key, one in value.items() if key not in CHANGING}
    return [strip(one) for one in value] if isinstance(value, list) else value


def find_difference(found: Any, expected: Any, where: str = "") -> str:
    """Return the first place where two results differ, and how; empty if they are equal."""
    if type(found) is not type(expected) or not isinstance(found, dict | list):
        return "" if found == expected else f"{where}: {found!r:.200} is not {expected!r:.200}"
    if isinstance(found, list):
        found, expected = (dict(enumerate(one)) for one in (found, expected))
    if found.keys() != expected.keys():
        return f"{where}: {sorted(map(str, found.keys() ^ expected.keys()))} are in one alone"
    places = (find_difference(found[key], expected[key], f"{where}/{key}") for key in found)
    return next(filter(None, places), "")


def main(comparisons: int = 5, seed: int = 0) -> None:
    """Run the comparisons; raise AssertionError at the first that is not like the undisturbed."""
    random.seed(seed)
    os.environ["PYTHONPATH"] = str(ROOT)
    with tempfile.TemporaryDirectory() as home:
        os.chdir(home)
        began = time.monotonic()
        expected = complete(Path("undisturbed"))
        length = time.monotonic() - began
        print(f"undisturbed: {length:.1f} s", flush=True)
        for number in range(1, comparisons + 1):
            folder = Path(f"disturbed-{number}")
            what = disturb(folder, length)
            difference = find_difference(complete(folder), expected)
            assert not difference, f"{what}; then {difference}"
            print(f"{number}: {what}; the results are equal", flush=True)
        os.chdir(ROOT)
    print(f"{comparisons} disturbed comparisons equal the undisturbed one, nothing was left over")


if __name__ == "__main__":
    from arguments import make_parser, positive

    parser = make_parser(__doc__)
    parser.add_argument("comparisons", nargs="?", type=positive, default=5)
    parser.add_argument("seed", nargs="?", type=int, default=0)
    known = parser.parse_args()
    main(known.comparisons, known.seed)
