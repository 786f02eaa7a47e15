"""Conditions past the size of training: their factors, and the methods that a model knows."""

import json
from dataclasses import replace

import language
import pytest
import torch

import zoo
from zoo.data.spec import ImageSpec, VideoSpec
from zoo.models.vit import ViT
from zoo.run import conditions
from zoo.run.build import Experiment


def test_factors_are_those_of_the_axes_of_the_model():
    assert conditions.compute_factors(ImageSpec(1, 16, 8, 10), (32, 8)) == (2.0, 1.0)
    assert conditions.compute_factors(VideoSpec(1, 16, 8, 10, frames=4), (32, 8)) == (1.0, 2.0, 1.0)
    assert conditions.compute_factors(language.SAMPLES, (48,)) == (4.0,)


def test_a_task_by_a_rule_has_the_same_weights_and_other_logits():
    recipe = zoo.load_recipe(
        "flipflop_rope", {"model.dim": 16, "model.depth": 1, "model.heads": 2, "data.length": 8}
    )
    task = Experiment(recipe).build_task().eval()
    for parameter in task.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    other = conditions.build_extended_task(recipe, task, task.state_dict(), "yarn", (4.0,))
    assert all(
        torch.equal(task.state_dict()[key], value) for key, value in other.state_dict().items()
    )
    inputs = torch.randint(5, (1, 32))
    assert not torch.allclose(task.model(inputs), other.model(inputs), atol=1e-3)


def test_an_unknown_rule_is_explained_with_those_that_the_model_knows():
    message = conditions.explain_unknown(
        language.decoder("rope", "fox"), language.SAMPLES, "yarm", (2.0,)
    )
    assert (
        message
        == "the encoding of the model, rope and fox, knows no extrapolation yarm; did you mean yarn?"
    )
    assert "resample" in conditions.explain_unknown(
        language.decoder("learned"), language.SAMPLES, "ntk", (2.0,)
    )
    assert "it knows none" in conditions.explain_unknown(
        language.decoder("alibi"), language.SAMPLES, "ntk", (2.0,)
    )
    assert (
        conditions.explain_unknown(language.decoder("alibi"), language.SAMPLES, "none", (2.0,))
        == ""
    )
    scaled = language.links("rope", options={"rope": {"scaling": {"rule": "ntk", "factor": 2.0}}})
    model = language.decoder(encoding=scaled)
    message = conditions.explain_unknown(model, language.SAMPLES, "yarn", (2.0,))
    assert "rope with scaling ntk, knows no extrapolation yarn" in message


@pytest.mark.parametrize("method", ["linear", "ntk", "yarn", "dynamic"])
def test_a_factor_is_used_and_stored_with_all_its_digits(method):
    """Its name is for people: nothing reads the factor back from it."""
    factors = [2.0, 2.123456789, 2.12345678901, 1e7 + 0.25]
    evaluate = {
        "evaluate.lengths": ["4x"],
        "evaluate.extrapolation": [method],
        "evaluate.factors": factors,
    }
    recipe = zoo.load_recipe("flipflop_rope", evaluate)
    swept = [
        one
        for one in conditions.list_conditions(recipe, language.SAMPLES)
        if one.kind == "extrapolation"
    ]
    assert [one.factor for one in swept] == factors
    assert len({one.name for one in swept}) == len({one.describe() for one in swept}) == 4
    model = language.decoder("rope")
    for condition, factor in zip(swept, factors, strict=True):
        plain = json.loads(json.dumps(condition.to_dict()))
        assert conditions.Condition.from_dict(plain) == condition
        renamed = replace(condition, name="another name")
        changes = conditions.find_changes(model, method, (4.0,), renamed.factor)
        assert changes
        assert {options["scaling"].factor for _, options in changes} == {factor}


def test_a_method_that_changes_no_encoding_is_recognised():
    for name, expected in {"rope_axial": True, "liere": True, "comrope_ap": False}.items():
        links = {name: lambda dims, name=name: zoo.encoding(name, dims)}
        image, sizes = ImageSpec(1, 16, 16, 2), {"dim": 32, "depth": 1, "heads": 1, "patch_size": 4}
        model = ViT(image, encoding=links, **sizes)
        assert conditions.changes_model(model, "linear", (2.0, 2.0)) == expected
        assert not conditions.changes_model(model, "none", (2.0, 2.0))


@pytest.mark.parametrize("coordinates", ["fraction", "symmetric", "growing", "interpolated"])
def test_coordinates_that_are_stretched_already_know_no_rule(coordinates):
    changed = language.links("rope", options={"rope": {"coordinates": coordinates}})
    model = language.encoder(encoding=changed)
    assert conditions.find_methods(model, (2.0,)) == {}
    rules = set(conditions.find_methods(language.encoder("rope"), (2.0,)))
    assert rules == {"linear", "ntk", "yarn", "llama3", "dynamic", "proportional", "clipped"}
    message = conditions.explain_unknown(model, language.SAMPLES, "linear", (2.0,))
    assert message.startswith(
        f"the encoding of the model, rope with coordinates {coordinates}, knows no extrapolation linear"
    )
