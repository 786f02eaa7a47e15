"""An argument of a wrong type is answered by its name, and not by Python's TypeError."""

import pytest
from torch import nn

import zoo
from zoo.attention.encoding import Dims

LAYER = nn.TransformerEncoderLayer(16, 2, batch_first=True)

CALLS = {
    "path of load_recipe": (lambda: zoo.load_recipe(3), "path: expected a path or a name, got 3"),
    "bytes": (
        lambda: zoo.load_recipe(b"lm_rope"),
        "path: expected a path or a name, got b'lm_rope'",
    ),
    "overrides": (lambda: zoo.load_recipe("lm_rope", 3), "overrides: expected a mapping"),
    "run": (lambda: zoo.Run(3), "path: expected a path, got 3"),
    "no run": (lambda: zoo.Run(None), "path: expected a path, got None"),
    "model of equip": (lambda: zoo.equip(3, "rope"), "model: expected a model, got 3"),
    "encoding": (
        lambda: zoo.equip(LAYER, 3),
        "an encoding is a name, a mapping or a list of these",
    ),
    "encodings": (lambda: zoo.equip(LAYER, [3]), "an encoding is a name, a mapping or a list"),
    "length": (lambda: zoo.equip(LAYER, "rope", length="a"), "length: expected an integer, or one"),
    "causal": (lambda: zoo.equip(LAYER, "rope", causal="no"), "causal: expected True or False"),
    "backend": (lambda: zoo.equip(LAYER, "rope", backend=3), "no backend 3; known are"),
    "model of unequip": (lambda: zoo.unequip(3), "model: expected a model, got 3"),
    "model of save": (lambda: zoo.save(3, "folder"), "model: expected a model, got 3"),
    "folder of save": (lambda: zoo.save(LAYER, 3), "folder: expected a path, got 3"),
    "recipe": (lambda: zoo.build_model(3), "recipe: expected a recipe of zoo.load_recipe, got 3"),
    "spec": (lambda: zoo.build_model(zoo.load_recipe("lm_rope"), 3), "spec: expected facts of"),
    "dims": (lambda: zoo.encoding("rope", 3), "dims is int, not zoo.Dims"),
    "dims of a layer": (lambda: zoo.Attention(3, "rope"), "dims: expected zoo.Dims, got 3"),
    "name of an encoding": (lambda: zoo.encoding(3, Dims(16, 2)), "an encoding is a name"),
    "dim": (lambda: Dims("a", 2), "dim: expected an integer, got 'a'"),
    "heads": (lambda: Dims(16, 2.0), r"heads: expected an integer, got 2\.0"),
}


@pytest.mark.parametrize("case", CALLS)
def test_a_wrong_type_is_named(case):
    call, message = CALLS[case]
    with pytest.raises((zoo.RecipeError, zoo.OptionError), match=message):
        call()
    assert not hasattr(LAYER, "zoo_encoding")
