"""The JSON schema accepts what recipes may hold, and refuses what `zoo show` refuses."""

import jsonschema
import pytest
from tiny import ROOT

from zoo.config import load
from zoo.config.compose import is_suite
from zoo.config.json_schema import build_schema
from zoo.config.tree import read_file
from zoo.errors import RecipeError

FILES = [
    path
    for folder in ("recipes", "configs")
    for path in (ROOT / folder).rglob("*.yaml")
    if not is_suite(path)
]


@pytest.fixture(scope="module")
def validator():
    schema = build_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def find_errors(validator, path):
    return [*validator.iter_errors(read_file(path, []).data)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_shipped_files_are_valid(path, validator):
    assert [error.message for error in find_errors(validator, path)] == []


@pytest.mark.parametrize(
    "change",
    [
        "modle: {dim: 64}",
        "model: {depht: 4}",
        "model: {dim: large}",
        "model: {dim: 64.5}",
        "model: {depth: 0}",
        "model: {name: vitt}",
        "model: {encoding: ropee}",
        "model: {encoding: []}",
        "model: {encoding: {name: rope, bese: 100}}",
        "model: {encoding: [{name: t5, num_buckets: many}]}",
        "model: {encoding: [{name: rope, coordinates: indexes}]}",
        "data: {name: digit}",
        "data: {batch_size: 4, global_batch_size: 8}",
        "task: {label_smoothing: 2}",
        "optim: {lr: -1}",
        "trainer: {precision: 17-mixed}",
        "trainer: {fast_dev_run: yes}",
        "trainer: {max_epochs: -1}",
        "trainer: 3",
        "trainer: {logger: [tensorbord]}",
        "trainer: {logger: {name: trackio, projekt: mine}}",
        "trainer: {callbacks: [gradient]}",
        "task: {metrics: [f2]}",
        "optim: {schedule: cosin}",
        "evaluate: {resolutions: 24}",
        "evaluate: {resolutions: [24px]}",
        "diagnostics: {layers: [-1]}",
        "seed: -1",
        "seed: true",
    ],
)
def test_what_zoo_refuses_is_refused(change, validator, tmp_path):
    path = tmp_path / "wrong.yaml"
    path.write_text(f"extends: vit_comrope\n{change}\n")
    with pytest.raises(RecipeError):
        load(path)
    assert find_errors(validator, path)


@pytest.mark.parametrize(
    "change", ["trainer: {logger: [], callbacks: learning_rate}", "task: {metrics: []}"]
)
def test_lists_of_none_and_single_members_are_valid(change, validator, tmp_path):
    path = tmp_path / "right.yaml"
    path.write_text(f"extends: vit_comrope\n{change}\n")
    load(path)
    assert not find_errors(validator, path)


@pytest.mark.parametrize(
    "change",
    [
        "model: {dim: 65}  # arithmetic: heads do not divide it",
        "extends: nowhere  # a file",
        "model: {dim: '${model.dpth}'}  # a reference",
        "model: {depth: 4.0}  # JSON has one kind of number",
        "trainer: {max_epochs: null}  # what belongs together",
    ],
)
def test_these_are_beyond_a_schema(change, validator, tmp_path):
    path = tmp_path / "wrong.yaml"
    path.write_text(f"{'' if 'extends' in change else 'extends: vit_comrope'}\n{change}\n")
    assert not find_errors(validator, path)


def test_encodings_of_plugins_are_known(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs/plugin")
    monkeypatch.setenv("ZOO_PLUGINS", "zoo_example")
    known = build_schema()["$defs"]["encodings"]["else"]["properties"]["name"]["oneOf"]
    assert {"gaussian", "rope"} <= {one["const"] for one in known}
