"""Rules for parameters by name: what they change, what they freeze, and which of them are refused."""

import pytest
import torch
from torch import nn

import zoo
from zoo.config.command_line import parse_overrides
from zoo.errors import OptionError, RecipeError
from zoo.optim.base import ParamGroup, freeze
from zoo.optim.optimizers import AdamW
from zoo.run.build import Experiment


def model():
    return nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3), nn.Linear(3, 4))


def groups(*rules):
    """(names, weight decay, rate) of each group."""
    made = model()
    named = {id(p): name for name, p in made.named_parameters()}
    optimizer = AdamW(lr=0.1, weight_decay=0.5, warmup_ratio=0.0, param_groups=rules).configure(
        made, 10
    )["optimizer"]
    return [
        ([named[id(p)] for p in g["params"]], g["weight_decay"], g["lr"])
        for g in optimizer.param_groups
    ]


USUAL = [
    (["0.weight", "2.weight"], 0.5, 0.1),
    (["0.bias", "1.weight", "1.bias", "2.bias"], 0.0, 0.1),
]


def test_without_rules_there_are_two_groups():
    assert groups() == USUAL


def test_a_factor_is_on_the_rate_and_leaves_the_decay():
    *usual, weight, bias = groups(ParamGroup(match="2.*", lr=0.1))
    assert usual == [(["0.weight"], 0.5, 0.1), (["0.bias", "1.weight", "1.bias"], 0.0, 0.1)]
    assert weight == (["2.weight"], 0.5, pytest.approx(0.01))
    assert bias == (["2.bias"], 0.0, pytest.approx(0.01))


def test_the_first_rule_that_matches_counts_alone():
    *_, first, second = groups(
        ParamGroup(match="*.bias", weight_decay=0.2), ParamGroup(match="2.*", lr=3.0)
    )
    assert first == (["0.bias", "1.bias", "2.bias"], 0.2, 0.1)
    assert second == (["2.weight"], 0.5, pytest.approx(0.3))


def test_what_is_frozen_is_in_no_group():
    *usual, ruled = groups(
        ParamGroup(match="0.*", freeze=True), ParamGroup(match="*.weight", weight_decay=0.1)
    )
    assert usual == [([], 0.5, 0.1), (["1.bias", "2.bias"], 0.0, 0.1)]
    assert ruled == (["1.weight", "2.weight"], 0.1, 0.1)


def test_what_is_frozen_takes_no_gradient_before_anything_asks():
    made = model()
    freeze(made, (ParamGroup(match="2.bias", lr=0.1), ParamGroup(match="2.*", freeze=True)))
    assert [name for name, p in made.named_parameters() if not p.requires_grad] == ["2.weight"]


def test_a_schedule_multiplies_each_rate():
    found = AdamW(
        lr=0.1, warmup_ratio=0.5, param_groups=(ParamGroup(match="2.*", lr=0.1),)
    ).configure(model(), 10)
    rates = [group["lr"] for group in found["optimizer"].param_groups]
    assert rates == pytest.approx([0.02, 0.02, 0.002, 0.002])


@pytest.mark.parametrize(
    ("rules", "key", "message"),
    [
        (
            [ParamGroup(match="2.wieght", freeze=True)],
            "param_groups.0.match",
            "a name like 2.wieght; did you mean 2.weight",
        ),
        (
            [ParamGroup(match="2.*", lr=2.0), ParamGroup(match="2.bias", freeze=True)],
            "param_groups.1.match",
            "groups before it match all",
        ),
        ([ParamGroup(match="[012].*", freeze=True)], "param_groups", "all parameters are frozen"),
    ],
)
def test_rules_that_do_nothing_or_leave_nothing_are_refused(rules, key, message):
    with pytest.raises(OptionError, match=message) as error:
        groups(*rules)
    assert error.value.key == key


@pytest.mark.parametrize("options", [{"freeze": True, "lr": 0.1}, {}])
def test_a_rule_that_says_two_things_or_nothing_is_refused(options):
    with pytest.raises(OptionError):
        ParamGroup(match="*", **options)


def test_a_recipe_tells_a_rule_that_matches_nothing_where_it_stands():
    with pytest.raises(
        RecipeError,
        match=r"argument: optim.param_groups.0.match: no parameter .*; did you mean head.bias\?",
    ):
        zoo.load_recipe(
            "vit_none", {"optim.param_groups": [{"match": "haed.bias", "freeze": True}]}
        )


def test_a_task_is_made_with_its_rules():
    rules = "optim.param_groups=[{match: head.*, lr: 2.0}, {match: '*', freeze: true}]"
    task = Experiment(
        zoo.load_recipe("vit_none", parse_overrides(["model.depth=1", rules]))
    ).build_task()
    assert [name for name, p in task.model.named_parameters() if p.requires_grad] == [
        "head.weight",
        "head.bias",
    ]
    optimizer = task.optim.configure(task.model, 10)["optimizer"]
    before = {name: p.detach().clone() for name, p in task.model.named_parameters()}
    task.model(torch.randn(2, 1, 16, 16)).sum().backward()
    optimizer.step()
    changed = [
        name for name, p in task.model.named_parameters() if not torch.equal(p, before[name])
    ]
    assert set(changed) <= {"head.weight", "head.bias"}
    assert changed


def rates(encoding, **options):
    """The learning rate of each parameter of a tiny transformer, by name."""
    overrides = [f"model.encoding={encoding}", "model.dim=16", "model.depth=2", "model.heads=2"]
    built = Experiment(zoo.load_recipe("vit_none", parse_overrides(overrides))).build_task().model
    names = {id(parameter): name for name, parameter in built.named_parameters()}
    optimiser = AdamW(lr=0.1, warmup_ratio=0.0, **options).configure(built, 10)["optimizer"]
    return {
        names[id(parameter)]: (group["lr"], group["weight_decay"])
        for group in optimiser.param_groups
        for parameter in group["params"]
    }


@pytest.mark.parametrize("encoding", ["rope_mixed", "comrope_ld", "[learned,rope_mixed]"])
def test_encoding_lr_scales_all_parameters_of_encodings_and_no_others(encoding):
    usual, scaled = rates(encoding), rates(encoding, encoding_lr=3.0)
    changed = {name for name in usual if usual[name] != scaled[name]}
    assert changed == {name for name in usual if "encoding" in name}
    assert changed
    for name in changed:
        assert scaled[name] == (pytest.approx(0.3), usual[name][1])


def test_a_group_that_matches_has_the_last_word_over_encoding_lr():
    found = rates(
        "[learned,rope_mixed]",
        encoding_lr=3.0,
        param_groups=(ParamGroup(match="encoding.learned*", lr=5.0),),
    )
    learned = {rate for name, (rate, _) in found.items() if "learned" in name}
    mixed = {rate for name, (rate, _) in found.items() if "rope_mixed" in name}
    assert [*learned] == [pytest.approx(0.5)]
    assert [*mixed] == [pytest.approx(0.3)]
