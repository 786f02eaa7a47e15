"""Entries of config.json that are missing or of a wrong type or range are named."""

import json
import math
import re

import pytest
import torch
from decoders import DECODERS, OTHERS, build, build_other, change_config
from parts import draw_part, run_parts

from zoo.errors import CheckpointError
from zoo.formats import convert as converting
from zoo.formats.config_entries import ENTRIES, ROPE_ENTRIES
from zoo.formats.convert import (
    FAMILIES,
    ConvertOptions,
    build_family,
    convert_family,
    read_published,
)
from zoo.formats.published import Pool, Published

transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

MODELS = {name.split()[0]: name for name in DECODERS if " of " not in name}
MODELS |= {name: name for name in ("BertModel", "ViTForImageClassification", "DINOv3ViTModel")}
DROPPED = object()
VALUES = [DROPPED, None, math.nan, 0, -1, 1e30, "x", [], {}, True, 1.5]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A published folder of a small model of each family."""
    root = tmp_path_factory.mktemp("published")
    transformers.logging.set_verbosity_error()
    for name in MODELS:
        make = build_other if name in OTHERS else build
        make(transformers, name).save_pretrained(root / name)
    change_config(root / "BertModel", "num_key_value_heads")
    return root


def describe(published, config):
    """Return the recipe and the family of published weights with another configuration."""
    changed = Published(published.name, config, published.weights)
    family = build_family(changed, Pool(published.weights))
    recipe = family.describe()
    family.check_read()
    scale = getattr(family, "scale", None)
    return (recipe, scale), family


def change(config, path, value):
    """Return a configuration with another value of a nested entry."""
    first, *rest = path
    inner = change(config.get(first) or {}, rest, value) if rest else value
    changed = {key: one for key, one in config.items() if key != first}
    return changed if inner is DROPPED else {**changed, first: inner}


def list_ropes(config, read):
    """Yield the paths of the rotary entries."""
    for entry in {"rope_parameters", "rope_scaling"} & read:
        held = config.get(entry) or {}
        parts = [key for key, one in held.items() if isinstance(one, dict)]
        for part in [(entry, key) for key in parts] or [(entry,)]:
            yield from ((*part, word) for word in ROPE_ENTRIES if not word.endswith("attention"))


def find_refusal(published, config, plain, folder):
    """Return why a configuration is refused; empty for one whose model is right."""
    try:
        if describe(published, config)[0] != plain:
            # compares the model with that of transformers
            changed = Published(folder.name, config, published.weights, folder=folder)
            convert_family(changed, folder, ConvertOptions(to="run"), {})
    except CheckpointError as error:
        return str(error)
    return ""


@pytest.fixture
def _build_recipes_once(monkeypatch):
    """Build the recipe of a family once: it depends on sizes, of which weights of a file change few."""
    recipes = {}
    build_recipe = converting.build_recipe

    def look_up(name, sections, spec, overrides):
        key = name, repr(sections), repr(spec), repr(overrides)
        if key not in recipes:
            recipes[key] = build_recipe(name, sections, spec, overrides)
        return recipes[key]

    monkeypatch.setattr(converting, "build_recipe", look_up)


def test_every_family_is_tried(folders):
    kinds = {
        json.loads((folders / name / "config.json").read_text())["model_type"] for name in MODELS
    }
    assert kinds == {*FAMILIES} - {""}


@pytest.mark.parametrize("name", MODELS)
@run_parts(6)
def test_every_value_of_an_entry_is_refused_by_name_or_makes_a_right_model(folders, name, step):
    published = read_published(folders / name)
    config = published.config
    plain, family = describe(published, config)
    read = family.config.read
    assert read <= {*ENTRIES}, "entries without a type"
    paths = [*((entry,) for entry in sorted(read)), *list_ropes(config, read)]
    for index, path in enumerate(paths, [*MODELS].index(name)):
        for value in draw_part(VALUES, step, index):
            changed = change(config, path, value)
            refusal = find_refusal(published, changed, plain, folders / name)
            words = {*re.findall(r"\w+", refusal)}
            assert not refusal or {path[-1], path[0]} & words, f"{path}={value!r}: {refusal}"


@pytest.mark.parametrize("kind", [kind for kind in FAMILIES if kind])
@pytest.mark.parametrize("value", [None, math.nan, -1, "x"])
def test_wrong_entries_are_all_refused_before_weights_are_read(tmp_path, kind, value):
    (tmp_path / "model.safetensors").write_bytes(b"")
    required = FAMILIES[kind].required
    settings = {"model_type": kind, **dict.fromkeys(required, value)}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(CheckpointError) as caught:
        read_published(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}: config.json: ")
    assert {*required} <= {*re.findall(r"\w+", str(caught.value))}


@pytest.mark.usefixtures("_build_recipes_once")
@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize("name", MODELS)
@run_parts(4)
def test_a_weight_of_another_shape_has_its_name_in_the_file(
    folders, name, is_whole, step, monkeypatch
):
    """It, or one that does not fit it; also where zoo has other names and cuts weights apart."""
    monkeypatch.setattr(converting, "can_compare", lambda published: False)
    published, folder = read_published(folders / name), folders / name
    family = FAMILIES[published.config["model_type"]]
    cut = "" if is_whole else family.prefix
    weights = {key.removeprefix(cut): one for key, one in published.weights.items()}
    for key in draw_part([key for key in weights if ".1." not in key], step, int(is_whole)):
        if any(re.fullmatch(family.dropped, start + key) for start in ("", family.prefix)):
            continue
        wrong = {**weights, key: torch.cat([weights[key], weights[key][..., :1]], -1)}
        made = Published(name, published.config, wrong)
        with pytest.raises(CheckpointError) as caught:
            convert_family(made, folder, ConvertOptions(to="run"), {})
        words = {*re.findall(r"[\w.]+", str(caught.value).removeprefix(str(folder)))}
        assert words & {*weights}, str(caught.value)
        assert {word for word in words if word.endswith((".weight", ".bias"))} <= {*weights}
