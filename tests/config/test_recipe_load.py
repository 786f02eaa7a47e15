"""From a file and overrides to a recipe, and back to plain data."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from types import MappingProxyType

import pytest
import yaml

from zoo.config import Recipe, TrainerOptions, from_plain, load
from zoo.config.command_line import parse_overrides
from zoo.errors import ARGUMENT, RecipeError
from zoo.options import Choice

Made = Callable[..., Recipe]
ListIssues = Callable[..., list[str]]
SECTIONS = [
    "seed",
    "init_from",
    "model",
    "data",
    "task",
    "optim",
    "trainer",
    "diagnostics",
    "evaluate",
    "generate",
    "predict",
]
WHOLE = """\
seed: 3
model:
  name: toy_vit
  dim: ${data.size}
  encoding: {name: toy_rope, base: 9}
data: toy_digits
task: {name: toy_classify}
optim: {name: toy_adam, lr: 1e-3}
trainer: {max_epochs: 2}
diagnostics:
evaluate: {resolutions: [24, 32]}
"""


def test_a_recipe_has_every_option_typed(load_text: Made) -> None:
    recipe = load_text(WHOLE)
    assert (recipe.name, recipe.seed, recipe.evaluate.resolutions) == ("mine", 3, (24, 32))
    assert recipe.model.options["encoding"] == (Choice("toy_rope", {"base": 9.0, "block": 8}),)
    assert recipe.optim == Choice("toy_adam", {"lr": 0.001, "betas": (0.9, 0.999)})
    assert recipe.trainer == TrainerOptions(max_epochs=2)
    assert recipe.data == Choice("toy_digits", {"size": 8, "note": "", "splits": ("train",)})


def test_a_default_can_be_interpolated(load_text: Made) -> None:
    assert (
        load_text(WHOLE, "data.note=${optim.betas.1}-${trainer.precision}").data.options["note"]
        == "0.999-32-true"
    )
    assert load_text(WHOLE, "data.size=5").model.options["dim"] == 5


def test_a_registered_recipe_loads_by_name() -> None:
    assert load("toy", {"seed": 4}).seed == 4
    assert load("toy").name == "toy"


def test_plain_data_gives_the_recipe_back(load_text: Made) -> None:
    recipe = load_text(WHOLE, "model.encoding.0.shared=true", "data.note='yes'")
    again = from_plain(recipe.plain(), origin="best.ckpt", name="mine")
    assert again == recipe
    assert again.hash == recipe.hash
    assert again.locations["model.dim"] == "best.ckpt"


def test_plain_is_plain_complete_and_in_order(load_text: Made) -> None:
    plain = load_text(WHOLE).plain()
    assert list(plain) == SECTIONS
    assert plain["diagnostics"] == {
        "every_n_steps": 100,
        "max_overhead": 0.02,
        "samples": 32,
        "queries": 16,
        "layers": None,
    }
    assert plain["trainer"]["accelerator"] == "auto"
    assert plain["model"]["rates"] is None
    assert plain["model"]["encoding"] == [{"name": "toy_rope", "base": 9.0, "block": 8}]
    assert type(plain["model"]) is dict
    assert type(plain["evaluate"]["resolutions"]) is list


@pytest.mark.parametrize(
    "note",
    ["yes", "010", "1e5", "1:30", "2001-01-01", "null", "", "a: b", "ü", "~", "=", "0x1", "<<"],
)
def test_yaml_is_read_back_by_us_and_by_others(load_text: Made, note: str) -> None:
    recipe = load_text(WHOLE, f"data.note='{note}'", "optim.lr=1e-5")
    text = recipe.yaml()
    assert load_text(text) == recipe
    assert yaml.safe_load(text) == recipe.plain()


def test_yaml_has_short_lists_on_a_line(load_text: Made) -> None:
    text = load_text(WHOLE).yaml()
    assert "  betas: [0.9, 0.999]\n" in text
    assert "  encoding:\n  - name: toy_rope\n" in text


def test_the_hash_tells_options_apart_and_nothing_else(load_text: Made) -> None:
    first = load_text(WHOLE)
    assert len(first.hash) == 8
    assert int(first.hash, 16) >= 0
    assert load_text("# a remark\n" + WHOLE, "optim={lr: 0.001, name: toy_adam}").hash == first.hash
    assert load_text(WHOLE, "seed=4").hash != first.hash


def test_a_recipe_is_frozen(load_text: Made) -> None:
    recipe = load_text(WHOLE)
    with pytest.raises(FrozenInstanceError):
        recipe.seed = 1  # type: ignore[misc]
    assert isinstance(recipe.model.options, MappingProxyType)
    assert isinstance(recipe.locations, MappingProxyType)


@pytest.mark.parametrize(
    ("override", "encoding"),
    [
        ("model.encoding.0.block=4", [{"name": "toy_rope", "base": 9.0, "block": 4}]),
        ("model.encoding=toy_liere", [{"name": "toy_liere", "block": 2}]),
        (
            "model.encoding=[toy_learned,toy_liere]",
            [{"name": "toy_learned"}, {"name": "toy_liere", "block": 2}],
        ),
        ("model.encoding=[{name: toy_liere, block: 4}]", [{"name": "toy_liere", "block": 4}]),
        ("model.encoding.0.name=toy_liere", [{"name": "toy_liere", "block": 2}]),
        ("~model.encoding", [{"name": "toy_learned"}]),
    ],
)
def test_encodings_are_overridden_in_every_form(
    load_text: Made, override: str, encoding: object
) -> None:
    assert load_text(WHOLE, override).plain()["model"]["encoding"] == encoding


@pytest.mark.parametrize("override", ["~model.encoding.0", "model.encoding=[]"])
def test_a_list_of_no_encodings_is_refused(list_issues: ListIssues, override: str) -> None:
    (found,) = list_issues(WHOLE, override)
    assert "model.encoding: a list of no encodings; known are alibi" in found


def test_overrides_are_applied_in_order(load_text: Made) -> None:
    recipe = load_text(WHOLE, "optim.name=toy_sgd", "optim.momentum=0.5", "optim.momentum=0.6")
    assert recipe.optim == Choice("toy_sgd", {"lr": 0.1, "momentum": 0.6})


def test_all_faults_are_told_with_their_places(list_issues: ListIssues) -> None:
    text = "model: {name: toy_vit, dim: ten,\n  dpth: 2}\nmodle: 1\ndata: toy_digts\nseed: -1\n"
    text += "trainer: {acelerator: cpu}\n"
    assert list_issues(
        text,
        "task=toy_classify",
        "optim=toy_sgd",
        "optim.momentum=x",
        "seed.x=1",
        "seed=0",
        "seed=0",
    ) == [
        "argument: seed.x: seed is -1 and has no keys",
        "mine.yaml:3: modle: unknown key; did you mean model?",
        "mine.yaml:2: model.dpth: unknown key; did you mean model.depth?",
        "mine.yaml:1: model.dim: expected an integer, got 'ten'",
        "mine.yaml:4: data.name: there is no 'toy_digts' among data; did you mean toy_digits?",
        "argument: optim.momentum: expected a finite number, got 'x'",
        "mine.yaml:6: trainer.acelerator: unknown key; did you mean trainer.accelerator?",
    ]


def test_missing_sections_and_options_are_told(list_issues: ListIssues) -> None:
    found = list_issues(
        "data: {name: toy_digits}\nmodel: {name: toy_vit}\noptim: {lr: 1}\ntrainer: {max_steps: 1}\n"
    )
    assert found[0] == "mine.yaml:2: model.dim: missing; expected an integer"
    assert found[1].startswith(
        "mine.yaml:1: task: missing; expected {name: ..., options} with a name of "
    )
    assert found[2].startswith("mine.yaml:3: optim.name: missing; known are ")
    assert len(found) == 3


@pytest.mark.parametrize(
    ("text", "override", "count"),
    [
        ("optim: {name: toy_adam, 1: 2}", "seed=1", 1),
        ("optim: {name: toy_adam, <<: {lr: 1}}", "seed=1", 1),
        ("optim: {name: toy_adam}\nseed: 1\nseed: 1", "seed=1", 2),
    ],
)
def test_what_an_earlier_fault_took_away_is_not_missing(
    list_issues: ListIssues, text: str, override: str, count: int
) -> None:
    text = f"model: {{name: toy_vit, dim: 1}}\ndata: toy_digits\ntask: toy_classify\n{text}\n"
    assert len(list_issues(text, "trainer.max_steps=1", override)) == count


def test_a_fragment_is_called_one(plugin: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        load(plugin / "configs/optim/toy_adam.yaml")
    (fault,) = caught.value.issues
    assert fault.problem == "a fragment, which cannot be run alone: it has no model, data, task"


@pytest.mark.parametrize(
    ("trainer", "fault"),
    [
        ("{}", "trainer: neither max_epochs nor max_steps is given"),
        ("{max_epochs: null}", "trainer: neither max_epochs nor max_steps is given"),
        ("{max_steps: 0}", "trainer.max_steps: must be at least 1, got 0"),
        (
            "{max_steps: 1, devices: two}",
            "trainer.devices: expected how many devices, auto, or which ones",
        ),
        ("{max_steps: 1, devices: 0}", "trainer.devices: must be at least 1, got 0"),
        (
            "{max_steps: 1, gradient_clip_val: -1}",
            "trainer.gradient_clip_val: must be positive, got -1.0",
        ),
        ("{max_steps: 1, precision: bf16-mix}", "trainer.precision: expected one of "),
        ("{max_steps: 1, accelerator: tpus}", "trainer.accelerator: expected one of "),
        ("{max_steps: 1, num_nodes: 1.5}", "trainer.num_nodes: expected an integer, got 1.5"),
    ],
)
def test_trainer_options_are_checked(list_issues: ListIssues, trainer: str, fault: str) -> None:
    (found,) = list_issues(WHOLE, "~trainer", f"trainer={trainer}")
    assert found.startswith(f"argument: {fault}")


def test_trainer_options_that_work_are_accepted(load_text: Made) -> None:
    options = load_text(
        WHOLE,
        "trainer={max_steps: 5, devices: '0,1', gradient_clip_val: null, precision: bf16-mixed}",
    ).trainer
    assert (options.max_epochs, options.max_steps, options.devices, options.gradient_clip_val) == (
        2,
        5,
        "0,1",
        None,
    )


def test_invalid_values_of_a_dataclass_stand_at_their_key(list_issues: ListIssues) -> None:
    assert list_issues(WHOLE, "model.position_augmentation.jitter=-1") == [
        "argument: model.position_augmentation.jitter: must not be negative"
    ]


def test_later_faults_find_the_closest_place(load_text: Made) -> None:
    recipe = load_text(WHOLE, "model.encoding.0.block=4")
    assert recipe.make_issue("model.encoding.0.block", "bad", "use 2").origin == ARGUMENT
    assert recipe.make_issue("model.encoding.0.shared", "bad").origin == "mine.yaml:5"
    assert (
        str(recipe.make_issue("trainer.devices", "too many", "use 1"))
        == "mine.yaml:9: trainer.devices: too many; use 1"
    )
    assert (
        load_text(WHOLE, "~trainer", "trainer.max_steps=1").make_issue("none", "bad").origin
        == "mine.yaml:1"
    )


def test_without_places_a_fault_names_the_recipe(load_text: Made) -> None:
    recipe = replace(load_text(WHOLE), locations={})
    assert recipe.make_issue("model.dim", "bad").origin == "mine"


def test_faults_of_a_checkpoint_stand_there() -> None:
    with pytest.raises(RecipeError) as caught:
        from_plain(
            {**load("toy").plain(), "modle": 1}, {"seed": "x"}, origin="last.ckpt", name="toy"
        )
    assert [fault.origin for fault in caught.value.issues] == ["last.ckpt", ARGUMENT]


def test_a_new_name_drops_what_a_checkpoint_holds_beside_an_overridden_mapping() -> None:
    overrides = ["optim={lr: 2}", "optim.name=toy_sgd"]
    recipe = from_plain(
        load("toy").plain(), parse_overrides(overrides), origin="last.ckpt", name="toy"
    )
    assert recipe.optim == Choice("toy_sgd", {"lr": 2.0, "momentum": 0.9})


@pytest.mark.parametrize("value", [{1: 2}, {"a.b": 1}, object(), {"a": {3}}, "\ud800"])
def test_data_that_is_not_plain_is_refused(value: object) -> None:
    with pytest.raises(RecipeError, match=r"best\.ckpt: seed"):
        from_plain({"seed": value}, origin="best.ckpt", name="mine")


def test_data_without_an_end_is_refused() -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(RecipeError, match="deeper than 32 levels"):
        from_plain({"seed": endless}, origin="best.ckpt", name="mine")


def test_recipes_need_neither_torch_nor_lightning() -> None:
    code = "import sys, zoo.config; print({'torch', 'lightning', 'omegaconf'} & {*sys.modules})"
    root = str(Path(__file__).parents[2])
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "set()"
