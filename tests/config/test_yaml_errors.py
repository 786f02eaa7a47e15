"""Files of new users: each mistake is told once, with its line, and without what follows from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

ListIssues = Callable[..., list[str]]

REST = "data: toy_digits\ntask: toy_classify\noptim: toy_sgd\ntrainer: {max_steps: 1}\n"
MODEL = "model: {name: toy_vit, dim: 8}\n"

MISTAKES = {
    "a renamed extends": ("extend: [toy]\n", "1: extend: unknown key; did you mean extends?"),
    "hydra's extends": ("defaults:\n  - toy\n", "1: defaults: unknown key; did you mean extends?"),
    "a misspelt fragment": (
        "extends: [optim/toy_adm]\n",
        "1: extends.0: there is no fragment or recipe 'optim/toy_adm', and no file in {here}; "
        "did you mean optim/toy_adam?",
    ),
    "a fragment without its folder": (
        "extends: [toy_adam]\n",
        "1: extends.0: there is no fragment or recipe 'toy_adam', and no file in {here}; "
        "did you mean optim/toy_adam?",
    ),
    "fragments by section": (
        "extends: {optim: toy_adam}\n",
        "1: extends.0: expected the name of a fragment or recipe; write extends: [model/...",
    ),
    "sections below a key": (
        "recipe:\n  model: toy_vit\n  data: toy_digits\n",
        "1: recipe: holds the sections; move the sections below it to the left",
    ),
    "another word for a section": (
        MODEL + REST.replace("optim", "optimizer"),
        "4: optimizer: unknown key; did you mean optim?",
    ),
    "another word for trainer": (
        MODEL + REST.replace("trainer", "training"),
        "5: training: unknown key; did you mean trainer?",
    ),
    "a section in capitals": (
        MODEL.replace("m", "M", 1) + REST,
        "1: Model: unknown key; did you mean model?",
    ),
    "another word for a required option": (
        MODEL.replace("dim", "hidden_size") + REST,
        "1: model.hidden_size: unknown key; did you mean model.dim?",
    ),
    "another word for name": (
        MODEL.replace("name", "type") + REST,
        "1: model.type: unknown key; did you mean model.name?",
    ),
    "no space after a colon": (
        MODEL.replace(": 8", ":8") + "x: 1\n" + REST,
        "1: model: no space after the colon of 'dim:8'; write dim: 8",
    ),
    "an equals sign": (
        MODEL + REST.replace("toy_digits", "\n  size = 8"),
        "2: data.name: there is no 'size = 8' among data; write size: 8 with a space after",
    ),
    "an empty section": (
        MODEL + REST.replace("toy_digits", ""),
        "2: data: expected {name: ..., options} with a name of",
    ),
    "Python's word for nothing": (
        MODEL + REST + "predict: {top: 1}\nevaluate: {lengths: None}\n",
        "7: evaluate.lengths: expected a list [an integer or a string, ...] or null, got 'None'; "
        "write null",
    ),
    "a number in quotes": (
        MODEL.replace("8", '"8"') + REST,
        "1: model.dim: expected an integer, got '8'; write it without quotes",
    ),
    "a list without brackets": (
        MODEL + REST + 'evaluate: {lengths: "16, 32"}\n',
        "6: evaluate.lengths: expected a list [an integer or a string, ...] or null, got '16, 32'; "
        "write [16, 32]",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_a_file_is_told_once_with_its_line(name: str, list_issues: ListIssues) -> None:
    text, expected = MISTAKES[name]
    found = list_issues(text)
    assert found[0].startswith(f"mine.yaml:{expected.replace('{here}', str(Path.cwd()))}")
    # what else is wrong in the text is told too
    assert len(found) == 1 + ("x: 1" in text)
