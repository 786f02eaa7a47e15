"""A hostile name of a class and of a file goes through the commands, and nothing obeys it."""

import json
import unicodedata
from pathlib import Path

import pytest
from hostile import CLASS, NAME, SHOWN, make_images
from tiny import TINY

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
