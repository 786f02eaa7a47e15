"""Words of the command line in a wrong order, form or number, each answered with the right line."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from zoo.cli import main

MISTAKES = {
    # commands
    "train lm_rope": "train: unknown command; did you mean fit?",
    "evaluate runs/x": "evaluate: unknown command; did you mean eval?",
    "rank runs": "rank: unknown command; did you mean compare rank?",
    "compare-rank runs": "compare-rank: unknown command; did you mean compare rank?",
    "lm_rope fit": "lm_rope: unknown command; write zoo fit lm_rope: the command comes first",
    "lm_rope": "it is a recipe: write zoo fit lm_rope, or zoo show lm_rope",
    "rope": "it is an encoding: write zoo show rope",
    "help": "help: unknown command; write zoo --help",
    "version": "version: unknown command; write zoo --version",
    "--Version": "--Version: unknown argument; did you mean --version?",
    "fit": "arguments are required: RECIPE; write it as in `zoo fit vit_comrope model.encoding=",
    "launch lm_rope slurm": "it is a recipe; the launcher comes first, one of slurm, torchrun",
    # flags and keys
    "fit lm_rope --epochs 3": "--epochs: unknown argument; write trainer.max_epochs=..., without",
    "fit lm_rope --lr=0.1": "--lr=0.1: unknown argument; write optim.lr=0.1, without dashes",
    "fit lm_rope --batch-size 3": "write data.batch_size=..., without dashes",
    "fit lm_rope --model.encoding=alibi": "write model.encoding=alibi, without dashes",
    "fit lm_rope --output_dir x": "--output_dir: unknown argument; did you mean --run-dir?",
    "fit lm_rope --run_dir x": "--run_dir: unknown argument; did you mean --run-dir?",
    "bench rope --rounds 3": "--rounds: unknown argument; write rounds=..., without dashes",
    "generate run --temperature 0": "write temperature=..., without dashes",
    "fit lm_rope run_dir=x": "'run_dir=x': an argument with dashes; write --run-dir x",
    "fit lm_rope output_dir=x": "'output_dir=x': an argument with dashes; write --run-dir x",
    "fit lm_rope resume=auto": "'resume=auto': an argument with dashes; write --resume auto",
    # one word or several
    "fit lm_rope model.dim = 8": "'model.dim = 8': spaces around =; write model.dim=8",
    "fit lm_rope model.dim": "write model.dim=..., with an equals sign and no space",
    "fit lm_rope model.dim:8": "'model.dim:8': not an override; write model.dim=8",
    "fit lm_rope model={name: vit}": "the shell has split it at its spaces; put it in quotes: "
    "'model={name: vit}'",
    "compare lm_rope encodings=[rope, alibi]": "put it in quotes: 'encodings=[rope, alibi]'",
    "bench {name: liere, block: 4}": "put it in quotes: '{name: liere, block: 4}'",
    "fit lm_rope alibi": "'alibi': not an override; it is an encoding: write model.encoding=alibi",
    "fit lm_rope model.encoding=rope,alibi": "write [rope,alibi]",
    "fit lm_rope model.encoding=rope+alibi": "write [rope,alibi]",
    "fit lm_rope model.encoding=rope(base=3)": "write {name: rope, base: 3}",
    "fit lm_rope 'model.encoding={rope: {base: 3}}'": "write {name: rope, base: 3}",
    "fit lm_rope optim.lr=1e-3,1e-4": "a run has one value; a comparison tries several",
    "fit lm_rope seed=[1,2]": "got [1, 2]; a run has one value; a comparison tries several",
    "eval run lengths=[3]": "lengths: unknown key; did you mean evaluate.lengths?",
    "export run out format=onnx": "format: unknown key; did you mean to?",
    "show schema x=1": "the schema has no options; write zoo show schema",
    "bench all": "there is no 'all' among encodings; known are alibi",
    "bench rope device=gpu": "got 'gpu'; did you mean cuda?",
    # recipes, encodings, runs
    "show rope_axal": "there is no such recipe or encoding, and no such file in {here}; did you "
    "mean rope_axial?",
    "show vit_comrop": "did you mean vit_comrope?",
    "show shema": "did you mean schema?",
    "show rope block=4": "block: unknown key; it is an option of comrope_ap, comrope_ld and liere; "
    "rope has base,",
    "fit rope": "there is no such recipe, and no such file in {here}; it is an encoding: name a "
    "recipe, and set model.encoding=rope",
    "fit model/lm_tiny": "it is a fragment, which recipes extend",
    "fit nofolder/x.yaml": "and no such file, there is no nofolder in {here}",
    "eval lm_rope": "lm_rope: no such checkpoint in {here}; it is a recipe: train it first",
    "eval nowhere": "nowhere: no such checkpoint in {here}; name a run directory",
    "convert nowhere": "nowhere: no such file or folder in {here}",
    "predict run nowhere.png": "run: no such checkpoint in {here}",
    "compare rank nowhere": "nowhere: no such file or folder in {here}; name the output folder",
    "compare check nowhere": "holds no comparison, no such folder in {here}",
    "fit lm_rope data.name=text data.files=[no.txt]": "no.txt: no such file in {here}",
    "fit lm_rope extends=[a]": "extends is read from files only; override the keys themselves",
}
"""Of each line after `zoo`, what is told."""


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistyped_line_is_answered_with_the_right_one(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(line)) in (2, 4, 5)
    told = capsys.readouterr().err
    assert MISTAKES[line].replace("{here}", str(tmp_path)) in told
    assert "Traceback" not in told
    # one mistake, one issue
    assert len(told.splitlines()) <= 2
    assert not list(tmp_path.iterdir())
