"""What the command line decides is refused before torch is imported, and before missing packages.

Files and packages come later: `test_main_missing_extras.py`.
"""

import json
import os
import subprocess
import sys

import pytest
from tiny import ROOT

from zoo.cli.commands import COMMANDS
from zoo.packages import EXTRAS, name_module

MISTAKES = [
    ("fit", "the following arguments are required: RECIPE"),
    ("fit vit_comropee", "did you mean vit_comrope?"),
    ("fit vit_comrope model.dpeth=2", "did you mean model.depth?"),
    ("fit vit_comrope model.dim=wide", "model.dim: expected an integer, got 'wide'"),
    ("fit vit_comrope model.block.qk_norm_eps=0.1", "there is no qk_norm to have an epsilon"),
    ("fit lm_rope optim.lr=-1", "optim.lr: must be"),
    ("fit lm_rope model.encoding.0.bse=3", "did you mean model.encoding.0.base?"),
    ("fit vit_comrope trainer", "'trainer': not an override"),
    ("fit vit_comrope =3", "not a key"),
    ("fit vit_comrope --resmue auto", "did you mean --resume?"),
    ("fit vit_comrope --accept-changes seed", "seed cannot change while a run goes on"),
    ("eval run evaluate.lnegths=[1x]", "did you mean evaluate.lengths?"),
    ("eval run tto=x", "did you mean to?"),
    ("generate run tokens=many", "generate.tokens: expected an integer"),
    ("predict run file.png topp=3", "did you mean predict.top?"),
    ("diagnose run sampels=3", "did you mean samples?"),
    ("atlas run sampels=3", "did you mean samples?"),
    ("extend run stpes=3", "did you mean steps?"),
    ("bench ropee", "did you mean rope?"),
    ("bench rope ronds=3", "did you mean rounds?"),
    ("compare", "no recipe; write"),
    ("compare vit_comrope seeds=many", "seeds: expected an integer"),
    ("compare vit_comrope seedz=3", "did you mean seeds?"),
    ("compare vit_comrope encodings=[none,ropee]", "ropee: command line: model.encoding.0.name"),
    ("compare vit_comrope encodings=[none] model.dpeth=2", "did you mean model.depth?"),
    ("compare suite=smal", "there is no suite 'smal'; did you mean small?"),
    ("compare rebuild folder mesure=loss", "did you mean measure?"),
    ("compare rank folder too=x", "did you mean to?"),
    ("compare merge one other too=x", "did you mean to?"),
    ("compare pack folder too=x", "did you mean to?"),
    ("compare claims folder too=x", "did you mean to?"),
    ("compare check folder cel=x", "did you mean cell?"),
    ("launch slurmm vit_comrope", "did you mean slurm?"),
    ("launch slurm vit_comrope nods=4", "did you mean nodes?"),
    ("launch slurm vit_comrope model.dpeth=2", "did you mean model.depth?"),
    ("convert folder too=x", "did you mean to?"),
    ("audit folder lawss=x", "did you mean laws?"),
    ("audit http://127.0.0.1:9/v1 refernce=x", "did you mean reference?"),
    ("export run to=onnx", "there is no folder to write"),
    ("export run to=onx folder", "did you mean onnx?"),
    ("export run too=onnx folder", "did you mean to?"),
    ("export run to=onnx dtype=float16 folder", "of to=onnx there is no such choice"),
    ("export run to=hf features=[1] folder", "features are outputs of a graph"),
    ("verify ropee", "did you mean rope?"),
    ("verify rope axs=2", "did you mean axes?"),
    ("list encodingz", "did you mean encodings?"),
    ("show vit_comropee", "did you mean vit_comrope?"),
    ("show vit_comrope model.dpeth=2", "did you mean model.depth?"),
    ("show rope dmi=3 picture=rope.png", "did you mean dim?"),
    ("diff vit_comrope vit_nonne", "did you mean vit_none?"),
    ("new recipee mine", "did you mean recipe?"),
    ("doctor now", "unknown argument"),
    ("docter", "did you mean doctor?"),
]
"""Command lines, and what is said about each."""
REFUSE_TORCH = """
import contextlib, importlib, io, json, sys
from importlib.machinery import PathFinder

hidden, lines = json.load(sys.stdin)
attempts = []

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "torch":
            attempts.append(name)
            raise RuntimeError("torch is imported")
        if name.partition(".")[0] in hidden:
            return None
        return PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
from zoo.cli.main import main

results = []
for line in lines:
    del attempts[:]
    with contextlib.redirect_stderr(io.StringIO()) as shown:
        code = main(line.split())
    results.append([code, shown.getvalue(), len(attempts)])
print(json.dumps(results))
"""


def refuse(folder, hidden, lines):
    """Return code, text and attempts to import torch of command lines where packages are hidden."""
    done = subprocess.run(
        [sys.executable, "-c", REFUSE_TORCH],
        input=json.dumps([[*hidden], lines]),
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("hides_extras", [False, True])
def test_mistakes_are_named_before_torch_is_imported_and_before_missing_packages(
    tmp_path, hides_extras
):
    extras = {name_module(name) for names in EXTRAS.values() for name in names}
    results = refuse(tmp_path, extras if hides_extras else (), [line for line, _ in MISTAKES])
    for (line, message), (code, text, attempts) in zip(MISTAKES, results, strict=True):
        assert (code, attempts) == (2, 0), f"{line}: {text}"
        assert message in text, f"{line}: {text}"
        assert "this needs" not in text, f"{line}: {text}"


def test_every_command_is_among_the_mistakes():
    known = {
        command
        for command in COMMANDS
        if any(f"{line} ".startswith(f"{command} ") for line, _ in MISTAKES)
    }
    assert known == {*COMMANDS}
