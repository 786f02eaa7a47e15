"""Models that zoo ships: they score what their cards say, and stand wherever a run may."""

import hashlib
import json
import re
from pathlib import Path

import pytest

import zoo as package
from zoo.config import load
from zoo.errors import CheckpointError
from zoo.run.shipped import FOLDER, list_weights

NAMES = sorted(list_weights())
MOST_BYTES = 6_000_000
FINGERPRINT = "7cfbd9e61768"
"""Of the help topics that the models of text were trained on."""


def test_three_small_models_are_shipped_with_recipe_card_and_checksums():
    assert NAMES == ["lm_fox", "lm_rope", "vit_comrope"]
    assert sum(file.stat().st_size for file in FOLDER.rglob("*")) < MOST_BYTES
    for name in NAMES:
        sums = (FOLDER / name / "SHA256SUMS").read_text().split("\n")
        listed = dict(reversed(line.split()) for line in sums if line)
        files = {file.name: file for file in (FOLDER / name).iterdir() if file.name != "SHA256SUMS"}
        assert {"README.md", "model.safetensors", "recipe.yaml"} <= {*files} == {*listed}
        for file, digest in listed.items():
            assert hashlib.sha256(files[file].read_bytes()).hexdigest() == digest


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_model_scores_what_its_card_says(name, zoo, tmp_path):
    before = sorted(FOLDER.rglob("*"))
    stated = list_weights()[name]
    assert f"{stated['value']:.4f}" in (FOLDER / name / "README.md").read_text()

    code, out, message = zoo("eval", f"zoo:{name}", *drop_conditions(name), "--json")
    assert code == 0, message
    measured = json.loads(out)["metrics"][stated["measure"]]
    # half precision of the weights; and the help topics of another Python are another text
    is_same_text = "python_docs" not in message or FINGERPRINT in message
    assert measured == pytest.approx(stated["value"], abs=0.002 if is_same_text else 0.1)

    # nothing is written into the package
    assert sorted(FOLDER.rglob("*")) == before
    assert (tmp_path / "runs" / "zoo" / name / "evaluation.json").is_file()


def drop_conditions(name):
    """Return the removal of all conditions but the trained one."""
    kept = load(name).evaluate
    return [f"~evaluate.{key}" for key in ("resolutions", "lengths") if getattr(kept, key)]


def test_a_name_stands_wherever_a_run_may(zoo, tmp_path):
    vit, text = "zoo:vit_comrope", "zoo:lm_rope"
    assert package.load(vit).application.name == "vit_comrope"
    assert [*package.Run(vit).recipe.encodings] == ["comrope_ld"]
    words = {
        "generate": (text, "generate.prompt=The ", "generate.tokens=4"),
        "diff": (text, "lm_rope"),
        "export": (vit, "to=safetensors", "out"),
        "diagnose": (vit, "samples=8"),
        "fit": ("vit_comrope", f"init_from={vit}", "trainer.max_steps=1", "~evaluate.resolutions"),
    }
    for command, own in words.items():
        code, _, message = zoo(command, *own)
        assert code == 0, message
    assert Path("out").is_dir()
    assert Path("diagnosis.html").is_file()


def test_an_unknown_name_is_answered_with_the_nearest(zoo):
    with pytest.raises(CheckpointError, match=r"zoo:vit_comrop: zoo has no weights of this name"):
        package.load("zoo:vit_comrop")
    code, _, message = zoo("eval", "zoo:lm_ropes")
    assert code == 5
    assert re.search("did you mean zoo:lm_rope", message)
