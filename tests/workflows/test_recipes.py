"""Every recipe opens with its claim, and trains."""

import json
import math
import re

import pytest
import torch
from small_recipes import BASES, LARGE, RECIPES, shrink, write_data
from torch.nn import functional as F

from zoo.config import Change, load
from zoo.data.corpus.tokenizer import Bytes
from zoo.data.spec import ImageSpec, TextSpec
from zoo.run.build import build_model

COUNTS = {
    "digits": 36,
    "python_docs": 59,
    "flipflop": 50,
    "moving_digits": 32,
    "seg_digits": 32,
    "images": 4,
    "image_masks": 4,
    "marker_offset": 50,
    "text_table": 13,
    "text_stream": 8,
    "counting": 50,
    "selective_copy": 50,
    "recall": 50,
    "addition": 50,
    "copying": 50,
    "parity": 50,
    "passkey": 50,
    "multikey_passkey": 50,
    "variable_tracking": 50,
    "common_words": 50,
    "irregular_series": 50,
}
"""Samples that a shrunken test split has, by data source."""


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_opens_with_its_claim(path):
    lines = path.read_text().splitlines()
    assert re.fullmatch(r"# .+\.", lines[0])
    words = [line.split()[1] for line in lines[2:6] if not line.startswith("# cost")]
    assert words[:3] == ["paper", "command", "number"]
    assert lines[3].split()[2:] == ["zoo", "fit", path.stem]
    (number,) = (line for line in lines if line.startswith("# number"))
    assert re.search(r"test/(accuracy|loss|miou) \d\.\d{4}|not recorded yet", number)
    assert len(lines) <= 25


TRAINED = {
    "addition_tape",
    "clip_comrope",
    "common_words_rope",
    "copying_none",
    "counting_cope",
    "flipflop_fox",
    "lm_alibi_wikitext103",
    "lm_dape_125m",
    "lm_hybrid",
    "marker_offset_t5",
    "mlm_tupe",
    "multikey_passkey_rope",
    "parity_none",
    "passkey_rope",
    "points_period_comrope",
    "recall_stickbreaking",
    "seg_digits_rope_mixed",
    "seg_vit_s16_ade20k",
    "selective_copy_cope",
    "variable_tracking_rope",
    "vit_comrope_ap",
    "vit_liere_cifar10",
}
"""Recipes that together have every data source, task, model and optimizer that recipes have.

The others are trained at night. test_missing_device.py trains every encoding.
"""

# of a family of large recipes, which differ in the encoding only, its base is trained; lm_fox_125m
# reads its data as lm_rope_124m does
SMALL = [path for path in RECIPES if path not in LARGE or path.stem in BASES[1:]]


def list_parts(path):
    """Return what a recipe is made of: its data, task, model and optimizer."""
    recipe = load(path)
    return {
        ("data", recipe.data.name),
        ("task", recipe.task.name),
        ("model", recipe.model.name),
        ("optim", recipe.optim.name),
    }


def test_recipes_that_are_trained_have_every_part():
    parts = {path.stem: list_parts(path) for path in SMALL}
    assert set(parts) >= TRAINED
    trained = {part for name in TRAINED for part in parts[name]}
    missing = {name: parts[name] - trained for name in parts if parts[name] - trained}
    assert not missing, "add one of these recipes to TRAINED"


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=() if path.stem in TRAINED else pytest.mark.nightly, id=path.stem)
        for path in SMALL
    ],
)
def test_a_recipe_trains_two_steps(path, zoo, tmp_path):
    recipe = load(path)
    write_data(recipe, tmp_path)
    # a pattern of layers is no longer than the depth
    depth = [] if recipe.model.options.get("layer_pattern") else ["model.depth=2"]
    if recipe.init_from is not None:
        # the run of another recipe, under runs/
        assert zoo("fit", recipe.init_from.split("/")[1], *depth, *shrink(recipe))[0] == 0
    code, printed, error = zoo("fit", path.stem, *depth, *shrink(recipe), "--json")
    assert code == 0, error

    result = json.loads(printed)
    count = COUNTS[recipe.data.name]
    assert result["count"] == count - (count % 16 if recipe.data.options.get("streams") else 0)
    assert all(math.isfinite(value) for value in result["metrics"].values())


class Gpt2(Bytes):
    """A vocabulary of the size of GPT-2's, which no test downloads."""

    def __len__(self):
        return 50_257


def load_large(path):
    return load(path.stem, [Change("data.path", "nowhere")])


@pytest.mark.parametrize("path", LARGE, ids=lambda path: path.stem)
def test_a_large_recipe_differs_from_its_base_in_the_encoding_only(path):
    recipe = load_large(path)
    family = path.stem.split("_")[1] if path.stem.startswith("vit") else "lm"
    base = next(name for name in BASES if family in name.split("_"))
    plain, other = (one.plain() for one in (recipe, load_large(path.with_stem(base))))
    for one in (plain, other):
        del one["model"]["encoding"]
    assert plain == other
    assert recipe.trainer.devices == 8


@pytest.mark.parametrize("path", LARGE, ids=lambda path: path.stem)
def test_a_large_recipe_takes_a_step_without_data(path):
    recipe = load_large(path)
    is_image = recipe.data.name == "images"
    spec = ImageSpec(3, 224, 224, 1000) if is_image else TextSpec(1024, Gpt2())
    counts = []
    for depth in (1, 2):
        shallow = load(path.stem, [Change("data.path", "nowhere"), Change("model.depth", depth)])
        with torch.device("meta"):
            model = build_model(shallow, spec)
        counts.append(sum(one.numel() for one in model.parameters()))
    with torch.device("meta"):
        outputs = model(*spec.build_inputs())
        targets = torch.zeros(outputs[..., 0].numel(), dtype=torch.long)
        F.cross_entropy(outputs.flatten(0, -2), targets).backward()
    # all layers have as many parameters
    millions = (counts[0] + (recipe.model.options["depth"] - 1) * (counts[1] - counts[0])) / 1e6
    size = path.stem.split("_")[1] if is_image else "124m"
    low, high = {"s16": (21.9, 22.1), "b16": (86.3, 86.7), "124m": (123.6, 123.8)}[size]
    assert low < millions < high
    assert all(one.grad is not None for one in model.parameters())
