"""Texts with labels from the command line: trained, measured at other lengths, and named by their classes."""

import json

import pytest
from tables import jsonl
from tiny import LETTERS

from zoo.verbs.fit import fit

CALM = """
extends: [model/mlm_tiny, data/passages, optim/adamw, trainer/default]
model: {dim: 16, depth: 1, heads: 2, encoding: rope}
data: {length: 8, val: 0.2, test: 0.2, batch_size: 4}
task: classify
trainer: {max_epochs: 1, accelerator: cpu}
"""


@pytest.fixture
def predicted(zoo):
    """What `zoo predict` prints as JSON."""

    def run(*arguments):
        code, out, told = zoo("predict", *arguments, "--json")
        assert code == 0, told
        return json.loads(out)

    return run


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """A run on labelled texts, whose table is gone."""
    folder = tmp_path_factory.mktemp("calm")
    rows = [{"text": LETTERS[n : n + 9], "label": ("calm", "wild")[n % 2]} for n in range(20)]
    jsonl(folder / "a.jsonl", rows)
    given = [f"data.path={folder / 'a.jsonl'}"]
    (folder / "calm.yaml").write_text(CALM)
    fit(str(folder / "calm.yaml"), given, folder / "run", "never")
    (folder / "a.jsonl").rename(folder / "b.jsonl")
    return folder


def test_texts_are_named_by_their_classes(calm, predicted, tmp_path):
    for name, words in (("a.txt", "abc"), ("b.txt", LETTERS[:40]), ("c.txt", "")):
        (tmp_path / name).write_text(words)
    found = predicted(calm / "run", ".")
    assert [one["path"] for one in found["predictions"]] == ["a.txt", "b.txt"]
    assert {each["label"] for each in found["predictions"][0]["top"]} == {"calm", "wild"}
    assert [one["problem"] for one in found["skipped"]] == ["empty"]
    (alone,) = predicted(calm / "run", "a.txt")["predictions"]
    assert alone["probability"] == pytest.approx(found["predictions"][0]["probability"], abs=1e-6)


def test_texts_with_labels_are_measured_at_other_lengths(calm, zoo):
    asked = [f"data.path={calm / 'b.jsonl'}", "evaluate.lengths=[4,8]", "--json"]
    code, out, told = zoo("eval", calm / "run", *asked)
    assert code == 0, told
    found = json.loads(out)
    assert found["lengths"].keys() == {"4", "8"}
    assert found["lengths"]["8"] == found["metrics"]
    assert found["lengths"]["4"]["test/loss"] != found["metrics"]["test/loss"]


def test_a_run_on_labelled_texts_reads_as_many_classes(calm, zoo):
    code, _, told = zoo("eval", calm / "run", f"data.path={calm / 'b.jsonl'}", "data.classes=5")
    assert code == 2
    assert "data.classes: 5 classes, the model was trained with 2" in told
