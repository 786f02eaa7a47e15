"""A mistyped word is answered at once, with the word that was meant."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
from tiny import ROOT

Zoo = Callable[..., tuple[int, str, str]]
HEAVY = {"lightning", "datasets", "torchmetrics", "kornia", "scipy", "altair"}


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (
            ["fit", "vit_comrope", "--run-dri", "x"],
            "--run-dri: unknown argument; did you mean --run-dir?",
        ),
        (["fit", "vit_comrope", "--jsn"], "--jsn: unknown argument; did you mean --json?"),
        (["fti", "vit_comrope"], "fti: unknown command; did you mean fit?"),
    ],
)
def test_an_unknown_word_of_the_command_line_is_answered_with_the_nearest(
    zoo: Zoo, arguments: list[str], answer: str
) -> None:
    code, _, err = zoo(*arguments)
    assert code == 2
    assert f"command line: {answer}\n" in err


def run_python(code: str) -> tuple[str, float]:
    """Run code in a process of its own; return what it prints and the seconds of CPU time it takes."""
    measured = f"import os, sys, time\n{code}\nprint(time.process_time(), *sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", measured], cwd=ROOT, capture_output=True, text=True, check=True
    )
    seconds, *modules = done.stdout.splitlines()[-1].split()
    return " ".join(modules), float(seconds)


def test_a_wrong_recipe_key_is_reported_without_lightning_or_datasets() -> None:
    wrong = "from zoo.cli import main\nassert main(['fit', 'vit_comrope', 'model.depht=8']) == 2"
    # the least CPU time of up to six paired tries: a busy machine slows one try, not all of them
    ours, torch = [], []
    for _ in range(6):
        modules, seconds = run_python(wrong)
        assert not HEAVY & set(modules.split())
        ours.append(seconds)
        torch.append(run_python("import torch")[1])
        if min(ours) < 1.5 * min(torch):
            return

    pytest.fail(f"{min(ours):.2f} s, and {min(torch):.2f} s for torch alone")
