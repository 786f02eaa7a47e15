"""Overrides as data: what a Python program may pass as changes of a recipe."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from zoo import config
from zoo.config import Change, Removal, join_overrides
from zoo.config.overrides import list_edits
from zoo.errors import ARGUMENT, RecipeError
from zoo.options import Choice


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ("1e-3", "1e-3"),
        (1e-7, 1e-7),
        (float("inf"), float("inf")),
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (torch.tensor(2.5), 2.5),
        (None, None),
        (True, True),
        (Path("data/images"), "data/images"),
        ((1, "a b"), [1, "a b"]),
        ({"name": "liere", "block": (4,)}, {"name": "liere", "block": [4]}),
        (Choice("liere", {"block": 4}), {"name": "liere", "block": 4}),
        ("${model.dim}", "${model.dim}"),
    ],
)
def test_a_value_becomes_plain_data_of_its_type(value: object, plain: object) -> None:
    (edit,) = list_edits({"a.b": value})
    assert edit == Change("a.b", plain)
    assert isinstance(edit, Change)
    assert type(edit.value) is type(plain)


@pytest.mark.parametrize(
    ("value", "issue"),
    [
        (object(), "a: not plain data but object"),
        ({"b": [1, {2}]}, "a.b.1: not plain data but set"),
        (torch.zeros(2), "a: not plain data but Tensor"),
        ({1: 2}, "a: 1 cannot be a key"),
        ({"b.c": 2}, "a: 'b.c' cannot be a key; nest mappings instead of writing dots"),
        ("\ud800", "a: not text that can be written down"),
        ("${oc.env:HOME}", "a: resolvers are refused"),
    ],
)
def test_a_value_that_is_not_plain_is_refused_by_key(value: object, issue: str) -> None:
    with pytest.raises(RecipeError) as caught:
        list_edits({"a": value})
    assert issue in str(caught.value)


def test_a_list_without_an_end_is_refused_once() -> None:
    endless: list[object] = []
    endless += [endless, endless]
    with pytest.raises(RecipeError, match="deeper than 32 levels") as caught:
        list_edits({"a": endless})
    assert len(caught.value.issues) == 1


@pytest.mark.parametrize(
    ("overrides", "remedy"),
    [
        ("optim.lr=0.1", 'write {"optim.lr": 0.1}'),
        (["optim.lr=0.1"], 'write {"optim.lr": 0.1}'),
        (["~optim"], "write [Removal('optim')]"),
        ([("optim.lr", 0.1)], "got ('optim.lr', 0.1); write {\"optim.lr\": 0.1}"),
    ],
)
def test_words_are_refused_with_the_edit_they_mean(overrides: object, remedy: str) -> None:
    with pytest.raises(RecipeError, match="overrides: expected a mapping") as caught:
        config.load("vit_comrope", overrides)  # type: ignore[arg-type]
    assert str(caught.value).endswith(remedy)


@pytest.mark.parametrize("key", ["", "a..b", "a[0]", "extends", "extends.0", ".".join("a" * 99), 1])
def test_a_key_that_no_recipe_has_is_refused(key: str) -> None:
    with pytest.raises(RecipeError):
        list_edits({key: 1})


def test_all_issues_are_reported_together() -> None:
    with pytest.raises(RecipeError) as caught:
        list_edits({"a": object(), "b": [{1}, {2}], "": 1, "c": 3})
    assert len(caught.value.issues) == 4
    assert {issue.origin for issue in caught.value.issues} == {ARGUMENT}


def test_later_overrides_come_after_earlier_ones() -> None:
    edits = join_overrides({"seed": 1}, [Removal("evaluate"), Change("seed", 2)])
    assert edits == [Change("seed", 1), Removal("evaluate"), Change("seed", 2)]
    assert config.load("vit_comrope", edits).seed == 2
