"""Train one committed cell again, chosen by the commit, and compare it to the last digit."""

from __future__ import annotations

import hashlib
import logging
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from zoo.comparison.cell import train_cell
from zoo.comparison.cell_files import UNTESTED, build_record
from zoo.comparison.plan import CELLS, RECIPES, ComparisonPlan, PlannedCell, write_plan
from zoo.comparison.record import CellRecord, list_unequal
from zoo.comparison.record_file import CELLS_FILE, check_cells
from zoo.errors import ARGUMENT, ConfigIssue, DataError, RecipeError
from zoo.launch.executor import make_run_dir
from zoo.suggestions import nearest

log = logging.getLogger("zoo")


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """Options of checking a committed comparison."""

    cell: str | None = None
    """Cell to train again; null takes the one that the hash of the commit chooses."""


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """The outcome of training a committed cell again.

    Attributes:
        path: The file with the record of the cell.
        cell: Its name.
        commit: The commit that chose it; empty if it was named.
        differences: The fields that differ, with both values; empty if all digits are equal.
        machine: The processor or GPU that the file names.
        machine_here: That of this machine.
        metrics: The metrics on the test data of the recipe, as trained here.
    """

    path: Path
    cell: str
    commit: str
    differences: tuple[str, ...]
    machine: str
    machine_here: str
    metrics: dict[str, float | None]

    @property
    def is_equal(self) -> bool:
        """True if all digits are equal."""
        return not self.differences

    def table(self) -> str:
        """Return the result as text."""
        chosen = f", chosen by commit {self.commit[:12]}" if self.commit else ""
        place = f"{self.path}, {self.cell}"
        if self.is_equal:
            return f"{place}: equal to the last digit{chosen}"
        lines = [f"{place}: not equal{chosen}", *(f"  {one}" for one in self.differences)]
        if self.machine != self.machine_here:
            lines.append(f"  it was trained on {self.machine}, and here on {self.machine_here}")
        return "\n".join(lines)


def check(folder: Path, options: CheckOptions) -> CheckResult:
    """Train a committed cell again.

    Args:
        folder: The output folder of a comparison.
        options: The options.

    Raises:
        RecipeError: There is no cell of this name.
        DataError: The folder holds no finished cell or is in no repository of git, or a cell was
            changed by hand.
    """
    plan = ComparisonPlan.read(folder)
    cells = check_cells(plan, folder)
    done = {cell.name: cell for cell in plan.cells if cell.name in cells}
    if not done:
        raise DataError(f"{folder}: holds no finished cell")
    # a named cell needs no commit, so it can be checked before one exists
    commit = "" if options.cell else read_commit(folder)
    name = options.cell or choose_cell([*done], commit)
    if name not in done:
        problem = f"there is no finished cell {name!r}"
        raise RecipeError(ConfigIssue(ARGUMENT, "cell", problem, nearest(name, done)))

    log.info("%s: training %s again", folder, name)
    committed = cells[name]
    # tested only if the committed cell was: a trial must not read test samples
    again = _train_again(plan, done[name], is_tested=committed.is_tested)
    differences = [str(one) for one in list_unequal(committed, again)]
    return CheckResult(
        path=folder / CELLS_FILE,
        cell=name,
        commit=commit,
        differences=tuple(differences),
        machine=committed.machine,
        machine_here=again.machine,
        metrics=dict(again.test),
    )


def choose_cell(names: list[str], commit: str) -> str:
    """Return the cell that the hash of a commit chooses: whoever commits cannot choose it."""
    number = int(hashlib.sha256(commit.encode()).hexdigest(), 16)
    # sorted, so that the order of the plan cannot move the choice
    return sorted(names)[number % len(names)]


def read_commit(folder: Path) -> str:
    """Return the commit of the repository of a folder. Raises DataError if it is in none."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
    except (OSError, subprocess.SubprocessError):
        problem = f"{folder}: is in no repository of git with a commit, which chooses the cell"
        raise DataError(f"{problem}; name one") from None
    return done.stdout.strip()


def _train_again(plan: ComparisonPlan, planned: PlannedCell, *, is_tested: bool) -> CellRecord:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_plan(replace(plan, cells=(planned,)), folder)
        run = make_run_dir(folder / CELLS / planned.name)
        recipe = folder / RECIPES / f"{planned.name}.yaml"
        if planned.trial is not None:
            # the trial that validation chose was tested from where its training had ended
            train_cell(recipe, run, is_tested=False)
            if not is_tested:
                (run / UNTESTED).touch()
        if is_tested or planned.trial is None:
            train_cell(recipe, run, is_tested=True)
        return build_record(plan, folder, planned)
