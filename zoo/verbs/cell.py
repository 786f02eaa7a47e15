"""`zoo compare --cell RUN`: one cell of a comparison, trained or gone on with, then measured at all its places."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from signal import SIG_IGN, SIGTERM, SIGUSR2, signal

from zoo.compare import state
from zoo.compare.cells import MEASURED
from zoo.compare.plan import RECIPES
from zoo.loading import load_recipe
from zoo.run.costs import END
from zoo.verbs.evaluate import evaluate, write
from zoo.verbs.fit import fit


def cell(run: Path, tied: bool) -> None:
    """Does what is not done yet, as `zoo fit` and `zoo eval` would. `tied`: it ends with whoever started it."""
    signal(SIGUSR2, SIG_IGN)  # by which SLURM tells all of a job that its time is over; its engine asks a cell to save
    if tied:
        _follow()
    recipe = run.parent.parent / RECIPES / f"{run.name}.yaml"
    with state.locked(state.made(run), "another process is working at this cell", state.PATIENCE):
        (run / state.STATE).unlink(missing_ok=True)
        if not (run / END).exists():
            fit(str(recipe), [], run, "auto")
        known = load_recipe(recipe)
        if known.evaluate.resolutions or known.evaluate.lengths or known.evaluate.variants:
            found = evaluate(str(run), [f"trainer.accelerator={known.trainer.accelerator}"])
            write(found or {}, run / MEASURED)
        state.write(run, "done")


def _follow() -> None:
    """Save and end, as SIGTERM has it, once nobody holds the other end of standard input: a kill is not passed on."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), SIGTERM)

    threading.Thread(target=wait, daemon=True).start()
