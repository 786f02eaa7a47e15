"""Encodings and recipes train on a CUDA device that is not there, in a process of its own.

Each encoding is trained in float32, bfloat16 and float16, with the backend that `auto` chooses on a
GPU, a plain one and a fused one, on text and on a grid, and decodes. Each recipe of another kind
takes a step. The product of encodings, backends and dtypes would take several minutes.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import zoo
from zoo.config import Change, load

HERE = Path(__file__).parent
PROGRAM = HERE / "train_on_missing_device.py"
RECIPES = sorted((HERE.parents[1] / "recipes").glob("*.yaml"))

KEPT = json.loads((HERE / "kept_bytes.json").read_text())
"""Bytes that a layer of width 64 with 4 heads keeps for the backward pass at 8,192 tokens."""
KNOWN_WAITS = json.loads((HERE / "known_waits.json").read_text())
"""Files in which the host waits for the device, by encoding or recipe. The list may only shrink."""
TRAINED = (
    "addition_fire",
    "clip_comrope",
    "lm_fox_pro",
    "lm_gemma",
    "lm_irope",
    "lm_linear_rope",
    "lm_xl",
    "marker_offset_t5",
    "mlm_tupe",
    "points_first_rope",
    "points_period_comrope",
    "seg_digits_comrope",
    "vit_none",
    "vit_s16_liere_imagenet",
)
"""A recipe of each kind."""

pytestmark = pytest.mark.skipif(
    torch.version.cuda is not None, reason="this torch has a CUDA device of its own"
)


@pytest.fixture(scope="module")
def found():
    root = HERE.parents[1]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    words = [sys.executable, str(PROGRAM), *zoo.encoding_names(), *PLANTED, "AllPairs", *TRAINED]
    done = subprocess.run(words, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["name"]: line for line in lines}


def list_faults(line):
    """List failures, waits, and bytes that differ from those recorded, of one line."""
    faults = list(line["failures"].values())
    files = {wait.partition(" in ")[2].partition(":")[0] for wait in line["waits"]}
    faults += [f"waits in {name}" for name in sorted(files - {*KNOWN_WAITS.get(line["name"], ())})]
    return faults


def find_change(kept, recorded):
    """Return what changed of the kept bytes; empty if they are within 1 % of those recorded."""
    if kept["backend"] != recorded["backend"]:
        return f"auto chooses {kept['backend']}, and chose {recorded['backend']}"
    if abs(kept["bytes"] - recorded["bytes"]) > 0.01 * recorded["bytes"]:
        return f"{kept['bytes']} bytes are kept, and {recorded['bytes']} were"
    return ""


@pytest.mark.parametrize("name", zoo.encoding_names())
def test_an_encoding_trains_and_decodes_on_a_gpu(name, found):
    assert not list_faults(found[name])
    dtypes = {title.split()[-1] for title in found[name]["passes"]}
    assert dtypes >= {"float32", "bfloat16", "float16"}


@pytest.mark.parametrize("name", zoo.encoding_names())
def test_a_layer_keeps_the_recorded_bytes_for_the_backward_pass(name, found):
    # An intended change is recorded by `train_on_missing_device.py --record`.
    assert not find_change(found[name]["kept"], KEPT[name])


def test_each_backend_runs(found):
    titles = {title.split()[0] for line in found.values() for title in line.get("passes", ())}
    assert titles >= {"auto", "reference", "chunked", "sdpa", "flex", "decode"}


@pytest.mark.parametrize("name", TRAINED)
def test_a_recipe_takes_a_step_on_a_gpu(name, found):
    assert not list_faults(found[name])


def test_waits_that_are_gone_leave_the_list(found):
    for name, files in KNOWN_WAITS.items():
        waits = " ".join(found[name]["waits"])
        gone = [file for file in files if file not in waits]
        assert not gone, f"remove {gone} of {name} from known_waits.json"


def find_kind(recipe):
    """Return what decides which operations a training step of a recipe consists of."""
    options = recipe.model.options
    names = ("layer_pattern", "memory_length", "softcap", "sinks", "logit_softcap", "window")
    augmentation = options.get("position_augmentation")
    jitters = augmentation is not None and augmentation.jitter > 0
    features = [name for name in names if options.get(name)]
    return recipe.task.name, recipe.model.name, options["attention"], jitters, *features


def test_a_recipe_of_each_kind_is_trained():
    kinds = {}
    for path in RECIPES:
        is_large = path.stem.endswith(("_124m", "_125m", "_imagenet", "_wikitext103"))
        recipe = load(path, [Change("data.path", "made")] if is_large else [])
        kinds.setdefault(find_kind(recipe), []).append(path.stem)
    missing = [names for names in kinds.values() if not {*names} & {*TRAINED}]
    assert not missing


PLANTED = {
    "HostTensor": "same device",
    "HostTensorInBias": "same device",
    "ReadsNumber": "waits in",
    "CopiesGradient": "waits in",
    "OtherDtype": "several kinds",
    "ReadsAtOnce": "waits in run/callbacks/nan_guard.py",
}
"""Planted faults, with what is said of them."""


@pytest.mark.parametrize(("name", "message"), PLANTED.items())
def test_a_planted_fault_is_found(name, message, found):
    assert any(message in fault for fault in list_faults(found[name]))


def test_a_planted_table_of_all_pairs_is_found(found):
    assert not list_faults(found["AllPairs"])
    assert "bytes are kept" in find_change(found["AllPairs"]["kept"], KEPT["none"])
