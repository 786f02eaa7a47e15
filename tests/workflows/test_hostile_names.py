"""A hostile name of a class and of a file goes through the commands, and nothing obeys it."""

import json
import logging
import unicodedata
from dataclasses import replace
from pathlib import Path

import comparisons
import pytest
from hostile import CLASS, NAME, SHOWN, make_images
from tiny import TINY

from zoo.cli import generate
from zoo.comparison.outputs import write_results
from zoo.utils import EscapingFormatter, escape_text

pytestmark = pytest.mark.robustness

OBEYED = "\x1b\x07\u202e"


def train(zoo, folder):
    options = [f"data={{name: images, path: {folder}, size: 8, channels: 1, batch_size: 4}}"]
    tiny = [word for word in TINY if not word.startswith("data.")]
    more = ["evaluate.resolutions=null", "trainer.logger=tensorboard"]
    return zoo("fit", "vit_none", *tiny, *options, *more, "--run-dir", "run")


def check_shown(text):
    """Nothing in a text is obeyed by a terminal."""
    assert not [letter for letter in text if letter in OBEYED]
    assert not [
        letter for letter in text if unicodedata.category(letter) == "Cc" and letter not in "\n\t\r"
    ]


def test_a_hostile_name_is_shown_and_obeyed_by_none(zoo, tmp_path):
    pytest.importorskip("datasets")
    hostile = make_images(tmp_path / "images")
    code, out, message = train(zoo, tmp_path / "images")
    assert code == 0, message
    check_shown(out + message + Path("run/train.log").read_text())
    assert json.loads(Path("run/confusion.json").read_text())["classes"] == [CLASS, "dog"]

    code, out, message = zoo("predict", "run", hostile)
    assert code == 0, message
    assert out.count("\n") == 1
    assert f"{SHOWN}<img" in out
    check_shown(out + message)
    code, out, message = zoo("predict", "run", hostile, "--json")
    assert code == 0, message
    check_shown(out + message)
    broken = hostile.with_name(f"broken {hostile.name}")
    broken.write_bytes(b"no image")
    for missing in (broken, tmp_path / f"missing {hostile.name}"):
        code, out, message = zoo("predict", "run", missing)
        # a name with = in it may be an override
        assert code in (2, 4)
        assert SHOWN in message or code == 2
        check_shown(out + message)
    for words in (["eval", "run"], ["fit", NAME], ["show", NAME], ["fit", "vit_none", f"{NAME}=1"]):
        _, out, message = zoo(*words)
        check_shown(out + message)

    code, out, message = zoo("diagnose", "run", "samples=1", "limit=1", "controls=false")
    assert code == 0, message
    check_shown(out + message)
    page = Path("run/diagnosis.html").read_text()
    assert "<img src=x" not in page


def test_a_comparison_shows_hostile_names_and_obeys_none(tmp_path, monkeypatch):
    monkeypatch.setattr("zoo.comparison.figures.save_figures", lambda comparison, folder: [])
    found = comparisons.images()
    first, *others = found.variants
    variants = (replace(first, name=NAME), *others)
    write_results(replace(found, variants=variants, recipe=NAME, command=NAME), tmp_path)
    for name in ("results.json", "comparison.md"):
        check_shown((tmp_path / name).read_text())
    assert json.loads((tmp_path / "results.json").read_text())["recipe"] == NAME
    text = (tmp_path / "comparison.md").read_text()
    assert f"# Which encoding, on {SHOWN}" in text
    for name in ("comparison.md", "index.html"):
        assert "<img src=x" not in (tmp_path / name).read_text()


def test_generated_text_and_log_lines_are_shown_and_obeyed_by_none(capsys):
    generate._print(NAME + "\t")
    assert capsys.readouterr().out == escape_text(NAME, keep="\n") + "\t"
    record = logging.LogRecord("zoo", logging.INFO, "", 0, "written: %s", (NAME,), None)
    check_shown(EscapingFormatter("%(message)s").format(record))


def test_commands_that_compare_recipes_show_hostile_names(zoo):
    Path("cat\x1b[2J\u202e.yaml").write_text("extends: lm_rope\n")
    code, out, message = zoo("diff", "lm_rope", "cat\x1b[2J\u202e.yaml")
    assert code == 0, message
    check_shown(out + message)
