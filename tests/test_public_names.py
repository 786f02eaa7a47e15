"""The names that users meet are those of `public_names.toml`."""

import dataclasses
import inspect
import pkgutil
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import zoo
from zoo.options.signature import read_options

NAMES = tomllib.loads((Path(__file__).parent / "public_names.toml").read_text(encoding="utf-8"))


def load(path):
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def list_keys(plain, prefix=""):
    for key, value in plain.items():
        yield prefix + key
        if isinstance(value, dict):
            yield from list_keys(value, f"{prefix}{key}.")


@pytest.mark.parametrize("module", NAMES["modules"])
def test_modules_hold_their_public_classes(module):
    assert set(NAMES["modules"][module]) <= set(vars(import_module(module)))


def test_no_module_has_the_name_of_a_public_function():
    """Importing the module zoo.NAME would replace the function zoo.NAME."""
    assert not {module.name for module in pkgutil.iter_modules(zoo.__path__)} & set(zoo.__all__)


@pytest.mark.parametrize("path", NAMES["attributes"])
def test_classes_have_their_hooks_and_facts(path):
    cls = load(path)
    known = set(dir(cls)) | set(getattr(cls, "__dataclass_fields__", ()))
    assert set(NAMES["attributes"][path]) <= known


@pytest.mark.parametrize("path", NAMES["fields"])
def test_dataclasses_have_their_fields(path):
    assert set(NAMES["fields"][path]) <= {field.name for field in dataclasses.fields(load(path))}


@pytest.mark.parametrize("path", NAMES["parameters"])
def test_functions_have_their_parameters(path):
    assert set(NAMES["parameters"][path]) <= set(inspect.signature(load(path)).parameters)


@pytest.mark.parametrize(
    ("recipe", "table"),
    [("lm_rope", "recipe_keys"), ("vit_comrope", "vit_keys"), ("mlm_tupe", "masked_lm_keys")],
)
def test_recipes_have_their_keys(recipe, table):
    plain = zoo.load_recipe(recipe).plain()
    for section, keys in NAMES[table].items():
        assert set(keys) <= set(list_keys(plain[section])), section


@pytest.mark.parametrize("name", NAMES["encoding_options"])
def test_encodings_have_their_options(name):
    assert set(NAMES["encoding_options"][name]) <= set(read_options("encodings", name))


@pytest.mark.parametrize("recipe", NAMES["weights"])
def test_weights_are_named_as_elsewhere(recipe):
    model = zoo.build_model(zoo.load_recipe(recipe))
    assert set(NAMES["weights"][recipe]) <= set(model.state_dict())
