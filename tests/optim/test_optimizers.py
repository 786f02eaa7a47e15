"""Each optimizer of torch trains and resumes to the bit, or is refused with its reason."""

import inspect
import io
import math
from dataclasses import fields

import pytest
import torch
from tiny import TINY
from torch.nn import functional as F

import zoo
from zoo import registry
from zoo.config import load
from zoo.config.command_line import parse_overrides
from zoo.errors import OptionError, RecipeError
from zoo.optim.base import PAIRS, TorchOptimizer
from zoo.options import Choice
from zoo.options.validation import REFUSED_MEMBERS
from zoo.run.build import Experiment
from zoo.run.preflight import build_experiment, check_optimizer

SMALL = ["model.dim=16", "model.depth=1", "model.heads=2", "model.encoding=rope_mixed"]
# how an optimizer computes, not what
IMPLEMENTATION = {"params", "foreach", "capturable", "differentiable", "fused", "maximize"}
NAMES = registry.names("optim")


def find(name):
    return registry.find("optim", name)


class Loop:
    """Steps of training on random images, without Lightning."""

    def __init__(self, name, **options):
        recipe = zoo.load_recipe("vit_none", parse_overrides(SMALL))
        torch.manual_seed(0)
        self.model = Experiment(recipe).build_task().model
        configured = find(name)(lr=0.01, **options).configure(self.model, 20)
        self.optimizer = configured["optimizer"]
        self.schedule = configured["lr_scheduler"]["scheduler"]

    def run(self, steps):
        losses = []
        for step in steps:
            draw = torch.Generator().manual_seed(step)
            images = torch.randn(4, 1, 16, 16, generator=draw)
            loss = F.cross_entropy(self.model(images), torch.arange(4))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            losses.append(loss.item())
        return losses

    def save(self):
        file = io.BytesIO()
        parts = (self.model, self.optimizer, self.schedule)
        torch.save([part.state_dict() for part in parts], file)
        file.seek(0)
        return file

    def load(self, file):
        states = torch.load(file, weights_only=True)
        for part, state in zip((self.model, self.optimizer, self.schedule), states, strict=True):
            part.load_state_dict(state)


@pytest.mark.parametrize("name", NAMES)
def test_an_optimizer_trains_and_resumes_to_the_bit(name):
    whole = Loop(name)
    before = {key: value.clone() for key, value in whole.model.state_dict().items()}
    losses = whole.run(range(10))
    saved = whole.save()
    losses += whole.run(range(10, 20))
    assert all(map(math.isfinite, losses))

    resumed = Loop(name)
    resumed.load(saved)
    assert resumed.run(range(10, 20)) == losses[10:]
    weights, again = whole.model.state_dict(), resumed.model.state_dict()
    assert all(torch.equal(weights[key], again[key]) for key in weights)
    assert not torch.equal(before["head.weight"], weights["head.weight"])
    assert any(not torch.equal(before[key], weights[key]) for key in weights if "mlp" in key)


def test_all_optimizers_of_torch_are_known_or_refused():
    classes = [
        cls
        for cls in vars(torch.optim).values()
        if inspect.isclass(cls) and issubclass(cls, torch.optim.Optimizer)
    ]
    known = {find(name).algorithm for name in NAMES}
    others = {cls.__name__ for cls in classes if cls not in known}
    refused = {"LBFGS", "SparseAdam", "ASGD", "Rprop", "Adadelta", "Adagrad", "Adamax"}
    assert others == {"Optimizer", *refused}
    assert {name.lower() for name in refused} == {
        name.replace("_", "") for kind, name in REFUSED_MEMBERS if kind == "optim"
    }


@pytest.mark.parametrize("name", [name for name in NAMES if name != "muon"])
def test_options_and_defaults_are_those_of_torch(name):
    cls = find(name)
    theirs = {
        key: parameter.default
        for key, parameter in inspect.signature(cls.algorithm).parameters.items()
        if key not in IMPLEMENTATION | {"lr", "weight_decay"}
    }
    if name == "adam":
        del theirs["decoupled_weight_decay"]  # that is adamw
    own = {field.name for field in fields(cls)} - {field.name for field in fields(TorchOptimizer)}
    made = cls(lr=1.0).own_arguments()
    assert made == theirs
    pairs = {one for pair in PAIRS.values() for one in pair} | {"eps1", "eps2"}
    assert own - pairs - IMPLEMENTATION <= theirs.keys()


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd"])
def test_a_fused_optimizer_takes_the_same_steps(name):
    fused, plain = Loop(name, fused=True), Loop(name)
    assert fused.optimizer.defaults["fused"]
    assert plain.optimizer.defaults["fused"] is None
    assert fused.run(range(5)) == pytest.approx(plain.run(range(5)), rel=1e-5)


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (
            ["optim.fused=true", "trainer.precision=16-mixed"],
            "optim.fused: the kernel hides the scale of gradients",
        ),
        (["optim=lbfgs"], "optim.name: lbfgs cannot train here: it evaluates the loss several"),
        (["optim=sparse_adam"], "optim.name: sparse_adam cannot train here: it is for sparse"),
        (["optim=adamm", "optim.lr=1"], "optim.name: there is no 'adamm' among optim; did you"),
        (["optim=sgd", "optim.lr=1", "optim.beta1=0.5"], "optim.beta1: unknown key"),
        (["optim=sgd", "optim.lr=1", "optim.nesterov=true"], "optim.nesterov: Nesterov momentum"),
        (["optim=rprop", "optim.lr=1"], "optim.name: rprop cannot train here: zoo 0.4 removed it"),
        (["optim.schedule=cosin"], "optim.schedule.name: there is no 'cosin' among schedules"),
        (
            ["optim.schedule={name: wsd, decay_ratio: 0.99}"],
            "optim.schedule.decay_ratio: warmup and decay take 1.09 times the steps of training",
        ),
        (
            ["optim.schedule=constant", "optim.min_lr_ratio=0.5"],
            "optim.min_lr_ratio: schedule constant never reaches it",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_its_key(overrides, problem):
    with pytest.raises(RecipeError) as caught:
        zoo.load_recipe("vit_none", parse_overrides([*TINY, *overrides]))
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["optim.fused=true"], "optim.fused: the kernel hides the scale of gradients"),
        (["optim=lbfgs"], "optim.name: lbfgs cannot train here"),
        (["optim=sgd", "optim.lr=1", "optim.nesterov=true"], "optim.nesterov: Nesterov momentum"),
        (["optim.schedule={name: wsd, decay_ratio: 0.99}"], "optim.schedule.decay_ratio: warmup"),
    ],
)
def test_a_trial_with_the_model_of_another_is_refused_with_its_key(overrides, problem):
    given = [*TINY, "trainer.precision=16-mixed"]
    checked = build_experiment(load("vit_none", parse_overrides(given)))
    with pytest.raises(RecipeError) as caught:
        check_optimizer(load("vit_none", parse_overrides([*given, *overrides])), checked)
    assert problem in str(caught.value)
    check_optimizer(load("vit_none", parse_overrides([*given, "optim.lr=0.1"])), checked)


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        ("cosine", [0.5, 1.0, 1.0, 0.55, 0.1]),
        ("linear", [0.5, 1.0, 1.0, 0.55, 0.1]),
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0]),
        ("wsd", [0.5, 1.0, 1.0, 1.0, 0.1]),
    ],
)
def test_a_schedule_follows_the_warmup(schedule, factors):
    recipe = zoo.load_recipe(
        "vit_none", parse_overrides(["optim.warmup_ratio=0.2", f"optim.schedule={schedule}"])
    )
    options = dict(recipe.optim.options)
    if schedule != "constant":
        options["min_lr_ratio"] = 0.1
    optimizer = find("adamw")(**options)
    steps = (0, 1, 2, 6, 10)
    assert [optimizer.lr_factor(step, 10) for step in steps] == pytest.approx(factors)


def test_wsd_falls_in_its_last_steps_alone():
    schedule = Choice("wsd", {"decay_ratio": 0.5})
    optimizer = find("adamw")(lr=1.0, warmup_ratio=0.0, min_lr_ratio=0.0, schedule=schedule)
    found = [optimizer.lr_factor(step, 8) for step in range(9)]
    assert found == pytest.approx([1, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0])


def test_muon_takes_the_matrices_of_blocks_and_adamw_the_rest():
    loop = Loop("muon", encoding_lr=2.0)
    names = {id(parameter): name for name, parameter in loop.model.named_parameters()}
    muon, adamw = (
        {names[id(p)] for group in part.param_groups for p in group["params"]}
        for part in loop.optimizer.parts
    )
    assert muon == {
        name for name in names.values() if name[:7] == "blocks." and "proj.weight" in name
    }
    assert muon | adamw == set(names.values())
    assert "head.weight" in adamw
    with pytest.raises(OptionError, match="muon trains matrices of transformer blocks"):
        find("muon")(lr=1.0).configure(torch.nn.Linear(2, 2), 10)
