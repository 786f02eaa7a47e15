"""Encodings and recipes train on a CUDA device that is not there, in a process of its own.

Encodings are trained with each backend in bfloat16, and at night all of them, and in float32 and
float16, on text and on a grid, and decode. Each recipe of another kind takes a step.
"""

import json
import os
import subprocess
import sys
from functools import cache
from itertools import product
from pathlib import Path

import pytest
import torch
from parts import KINDS, mark_others

import zoo
from zoo.config import Change, load

HERE = Path(__file__).parent
PROGRAM = HERE / "train_on_missing_device.py"
RECIPES = sorted((HERE.parents[1] / "recipes").glob("*.yaml"))

KEPT = json.loads((HERE.parents[1] / "zoo" / "benchmark" / "layer_memory.json").read_text())
"""Bytes that a layer of width 64 with 4 heads keeps, and takes at its peak, at 8,192 tokens."""
KNOWN_WAITS = json.loads((HERE / "known_waits.json").read_text())
"""Files in which the host waits for the device, by encoding or recipe. The list may only shrink."""
TRAINED = (
    "addition_fire",
    "clip_comrope",
    "lm_fox_pro",
    "lm_gemma",
    "lm_hybrid",
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
BACKENDS = {"reference", "chunked", "sdpa", "flex"}
NOT_FUSED = {"cope", "dape", "shaw", "stickbreaking"}
"""Encodings that no fused backend computes."""

pytestmark = pytest.mark.skipif(
    torch.version.cuda is not None, reason="this torch has a CUDA device of its own"
)


@pytest.fixture(scope="module")
def examine(tmp_path_factory):
    """examine(name) -> what the program finds, which runs until the tests of this process end."""
    root, errors = HERE.parents[1], tmp_path_factory.mktemp("missing") / "errors"
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    words = [sys.executable, str(PROGRAM), "-"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with (
        errors.open("w") as stderr,
        subprocess.Popen(words, **pipes, stderr=stderr, text=True, env=env) as process,
    ):

        @cache
        def ask(name):
            print(name, file=process.stdin, flush=True)
            answer = process.stdout.readline()
            assert answer, errors.read_text()
            return json.loads(answer)

        yield ask


OFTEN = (*KINDS, "comrope_ld", "liere", "none", "string", "tape", "tupe")
"""Encodings that together use all operations that might wait or lie on another device."""


@pytest.fixture(scope="module", params=mark_others(zoo.encoding_names(), OFTEN))
def name(request):
    # tests of an encoding run one after another, in one process
    return request.param


def list_faults(line):
    """List failures, and differences between waits and those known, of one line."""
    faults = list(line["failures"].values())
    files = {wait.partition(" in ")[2].partition(":")[0] for wait in line["waits"]}
    known = {*KNOWN_WAITS.get(line["name"], ())}
    faults += [f"waits in {name}" for name in sorted(files - known)]
    faults += [f"remove {name} from known_waits.json" for name in sorted(known - files)]
    return faults


def find_change(kept, recorded):
    """Return what changed of the kept bytes; empty if they are within 1 % of those recorded."""
    if kept["backend"] != recorded["backend"]:
        return f"auto chooses {kept['backend']}, and chose {recorded['backend']}"
    if abs(kept["bytes"] - recorded["bytes"]) > 0.01 * recorded["bytes"]:
        return f"{kept['bytes']} bytes are kept, and {recorded['bytes']} were"
    if abs(kept["peak"] - recorded["peak"]) > 0.02 * recorded["peak"]:
        return f"the peak has {kept['peak']} bytes, and had {recorded['peak']}"
    return ""


def list_passes(name, dtypes):
    """List the passes that an encoding must make in some dtypes, but for that on a long input."""
    backends = {"reference", "chunked"} if name in NOT_FUSED else BACKENDS
    axes = zoo.encoding_class(name).axes
    passes = product(backends | ({"decode"} if 1 in axes else set()), dtypes)
    if {1, 2} <= {*axes}:
        passes = [*passes, *product(["grid"], {*dtypes} - {"float32"})]
    return {*map(" ".join, passes)}


def test_an_encoding_trains_and_decodes_on_a_gpu(name, examine):
    found = examine(name)
    assert not list_faults(found)
    assert {*found["passes"]} == {"auto bfloat16", *list_passes(name, ["bfloat16"])}


@pytest.mark.nightly  # each dtype is a third of the passes
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_an_encoding_trains_and_decodes_in_another_dtype_on_a_gpu(name, dtype, examine):
    found = examine(f"{name}:{dtype}")
    # known waits are those of all passes together
    faults = list_faults({**found, "name": name})
    assert not [fault for fault in faults if not fault.startswith("remove")]
    assert {*found["passes"]} == list_passes(name, [dtype])


def test_a_layer_takes_the_recorded_memory(name, examine):
    # An intended change is recorded by `train_on_missing_device.py --record`.
    assert not find_change(examine(name)["kept"], KEPT[name])


@pytest.mark.parametrize(
    "recipe",
    [
        path.stem if path.stem in TRAINED else pytest.param(path.stem, marks=pytest.mark.nightly)
        for path in RECIPES
    ],
)
def test_a_recipe_takes_a_step_on_a_gpu(recipe, examine):
    assert not list_faults(examine(recipe))


def find_kind(recipe):
    """Return what decides which operations a training step of a recipe consists of."""
    options = recipe.model.options
    names = ("layer_pattern", "memory_length", "softcap", "sinks", "logit_softcap", "window")
    augmentation = options.get("position_augmentation")
    jitters = augmentation is not None and augmentation.jitter > 0
    features = [name for name in names if options.get(name)]
    types = (options.get("layer_types") or {}).values()
    mixers = {one["mixer"].name for one in types if "mixer" in one}
    return recipe.task.name, recipe.model.name, jitters, *sorted(mixers), *features


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
    "truth": "__bool__",
    "list": "copy cpu to cuda",
    "nonzero": "aten.nonzero",
    "unique": "aten._unique2",
    "mask": "aten.index.Tensor",
    "inv": "linalg_check_errors",
    "solve": "linalg_check_errors",
    "cholesky": "linalg_check_errors",
    "svd": "linalg_svd",
    "eigh": "linalg_eigh",
    "matrix_exp": "linalg_matrix_exp",
    "assignment": "index_put",
    "early read": "early read",
    "synchronize": "synchronize",
}
"""Planted faults, with what is said of them."""


@pytest.mark.parametrize(("fault", "message"), PLANTED.items())
def test_a_planted_fault_is_found(fault, message, examine):
    found = examine(fault)
    assert any(message in one for one in [*list_faults(found), *found["waits"]])


def test_a_planted_table_of_all_pairs_is_found(examine):
    found = examine("AllPairs")
    assert not list_faults(found)
    assert "bytes are kept" in find_change(found["kept"], KEPT["none"])
