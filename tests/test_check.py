"""Whether the parts of a recipe fit is told before anything starts, all faults at once."""

from typing import Literal, get_args, get_origin

import pytest

import zoo
from zoo.config.command_line import parse_overrides
from zoo.errors import DataError, RecipeError
from zoo.options.signature import read_options

LANGUAGE = "extends: [model/{model}, data/{data}, optim/adamw, trainer/default]\n"
FITTING = {"lm_tiny": "causal_lm", "mlm_tiny": "masked_lm", "vit_tiny": "classification"}


@pytest.fixture
def faults(tmp_path):
    """faults(model, data, task, *overrides) -> {key: problem} of a recipe of these."""

    def find_issues(model, data, task, *overrides):
        path = tmp_path / "recipe.yaml"
        path.write_text(LANGUAGE.format(model=model, data=data))
        encoding = "rope_axial" if model == "vit_tiny" else "rope"
        always = [f"task.name={task}", f"model.encoding={encoding}", "trainer.max_epochs=1"]
        try:
            zoo.load_recipe(path, parse_overrides([*always, *overrides]))
        except RecipeError as error:
            return {fault.key: fault.problem for fault in error.issues}
        return {}

    return find_issues


@pytest.mark.parametrize("model", FITTING)
def test_what_fits_has_no_fault(model, faults):
    assert faults(model, "digits" if model == "vit_tiny" else "flipflop", FITTING[model]) == {}


def test_a_task_that_reads_other_samples_is_told(faults):
    assert faults("vit_tiny", "digits", "causal_lm") == {
        "task.name": "task causal_lm reads text, data digits yields images"
    }
    assert faults("lm_tiny", "flipflop", "classification") == {
        "task.name": "task classification reads images, labelled texts or points, data flipflop yields text"
    }


def test_texts_with_labels_are_classified_and_neither_filled_nor_predicted(faults):
    assert faults("mlm_tiny", "marker_offset", "classification") == {}
    assert faults("mlm_tiny", "marker_offset", "masked_lm") == {
        "task.name": "task masked_lm reads text, data marker_offset yields labelled texts"
    }
    assert faults("lm_tiny", "marker_offset", "causal_lm") == {
        "task.name": "task causal_lm reads text, data marker_offset yields labelled texts",
        "model.name": "model decoder reads text, data marker_offset yields labelled texts",
    }


def test_a_model_and_a_task_that_read_other_samples_are_told_at_once(faults):
    assert faults("lm_tiny", "digits", "causal_lm") == {
        "task.name": "task causal_lm reads text, data digits yields images",
        "model.name": "model decoder reads text, data digits yields images",
    }


@pytest.mark.parametrize(("name", "model"), [("lm_rope", "vit"), ("vit_alibi", "decoder")])
def test_a_new_model_that_reads_other_samples_is_one_fault(name, model):
    with pytest.raises(RecipeError) as caught:
        zoo.load_recipe(name, {"model": model})
    (fault,) = caught.value.issues
    assert fault.key == "model"
    assert {"vit": "choose decoder", "decoder": "choose timm or vit"}[model] in str(fault)


def test_a_task_that_wants_another_model_is_told(faults):
    assert "choose model decoder" in faults("mlm_tiny", "flipflop", "causal_lm")["task.name"]
    assert "choose model encoder" in faults("lm_tiny", "flipflop", "masked_lm")["task.name"]


def test_places_by_a_length_that_is_not_known_are_told(faults):
    find_issues = faults("lm_tiny", "flipflop", "causal_lm", "model.encoding=comrope_ld")
    assert "add coordinates: index to its entry" in find_issues["model.encoding"]
    assert not faults(
        "lm_tiny", "flipflop", "causal_lm", "model.encoding={name: comrope_ld, coordinates: index}"
    )


def test_memory_wants_windows_that_follow_one_another(faults, tmp_path):
    assert (
        "set it to 0"
        in faults("lm_tiny", "flipflop", "causal_lm", "model.memory_length=8")[
            "model.memory_length"
        ]
    )
    (tmp_path / "a.txt").write_text("abcdefg " * 3000)
    given = ["model.memory_length=8", f"data.files=[{tmp_path / 'a.txt'}]"]
    assert (
        "set data.streams to true"
        in faults("lm_tiny", "text", "causal_lm", *given)["model.memory_length"]
    )
    assert (
        faults("lm_tiny", "text", "causal_lm", *given, "data.streams=true", "data.length=16") == {}
    )


def test_missing_data_is_told_where_nothing_else_is_wrong(faults):
    with pytest.raises(DataError, match="nowhere"):
        faults("lm_tiny", "text", "causal_lm", "data.files=[nowhere.txt]")
    find_issues = faults(
        "lm_tiny", "text", "causal_lm", "data.files=[nowhere.txt]", "trainer.accelerator=tpu"
    )
    assert set(find_issues) == {"trainer"}


def test_what_the_data_cannot_vary_is_told(faults):
    find_issues = faults("vit_tiny", "digits", "classification", "evaluate.lengths=[8]")
    assert find_issues == {
        "evaluate.lengths": "data digits has no option length, so it cannot vary"
    }
    assert (
        "no option stride"
        in faults("lm_tiny", "flipflop", "causal_lm", "evaluate={lengths: [8], stride: 4}")[
            "evaluate.stride"
        ]
    )
    assert (
        "write 8"
        in faults("lm_tiny", "flipflop", "causal_lm", "evaluate.lengths=[7]")["evaluate.lengths"]
    )
    assert not faults("lm_tiny", "flipflop", "causal_lm", "evaluate.lengths=[8, 128]")


def test_a_stride_without_lengths_is_told(faults):
    assert (
        "add evaluate.lengths"
        in faults("lm_tiny", "flipflop", "causal_lm", "evaluate.stride=4")["evaluate.stride"]
    )


def test_an_option_of_an_encoding_that_does_not_fit_is_blamed_on_the_encoding(faults):
    word = "model.encoding=[{name: comrope_ld, block: 7}]"
    find_issues = faults("vit_tiny", "digits", "classification", word)
    assert find_issues["model.encoding.0.block"].startswith("comrope_ld: block 7 must be even")


SHIFTED = "model.position_augmentation.shift"
TABLES = ("learned", "tupe")


@pytest.mark.parametrize("encoding", TABLES)
def test_positions_that_training_moves_out_of_a_table_are_told(encoding, faults):
    def find(*words):
        return faults("lm_tiny", "flipflop", "causal_lm", f"model.encoding={encoding}", *words)

    assert "training moves tokens" in find(f"{SHIFTED}=0.6")["model.position_augmentation"]
    assert "position_augmentation" in "".join(find("model.position_augmentation.stretch=1.5"))
    # within its cell, a token may move
    assert find("model.position_augmentation.jitter=0.6", f"{SHIFTED}=0") == {}
    assert find(f"{SHIFTED}=0.5") == {}
    longer = f"model.encoding={{name: {encoding}, stretch: 2}}"
    assert find("model.position_augmentation.stretch=1.0", longer) == {}


@pytest.mark.parametrize("encoding", TABLES)
def test_positions_that_memory_moves_out_of_a_table_are_told(encoding, faults):
    words = [f"model.encoding={encoding}", "model.memory_length=8", "data.streams=true"]
    found = faults("lm_tiny", "python_docs", "causal_lm", *words)
    assert "grow without end" in found["model.memory_length"]


def test_coordinates_that_a_table_cannot_read_are_told(faults):
    words = ["model.encoding={name: learned, coordinates: symmetric}"]
    found = faults("mlm_tiny", "flipflop", "masked_lm", *words)
    assert "use coordinates index" in found["model.encoding"]


def list_values(option):
    """List values of an option that has few."""
    annotation = option.annotation
    if annotation is bool:
        return [True, False]
    return get_args(annotation) if get_origin(annotation) is Literal else []


CHOSEN = {
    (encoding, key): values
    for encoding in zoo.encoding_names()
    for key, option in read_options("encodings", encoding).items()
    if (values := list_values(option))
}


FIRST = {key: encoding for encoding, key in reversed(CHOSEN)}
"""The first encoding that has an option; others with an option of this name are checked at night."""


@pytest.mark.parametrize(
    ("encoding", "key"),
    [
        pytest.param(encoding, key, marks=() if FIRST[key] == encoding else pytest.mark.nightly)
        for encoding, key in CHOSEN
    ],
)
def test_no_option_of_an_encoding_reads_values_that_the_check_does_not_have(encoding, key, faults):
    models = {"lm_tiny": "flipflop", "mlm_tiny": "flipflop", "vit_tiny": "digits"}
    for model, data in models.items():
        for value in CHOSEN[encoding, key]:
            entry = f"model.encoding=[{{name: {encoding}, {key}: {str(value).lower()}}}]"
            # a fault is an issue of the recipe, never another exception
            faults(model, data, FITTING[model], entry, "model.depth=1", "model.heads=2")
