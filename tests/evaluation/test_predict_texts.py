"""Texts with labels from the command line: trained, measured at other lengths, and named by their classes."""

import json

import pytest
from tables import jsonl
from tiny import LETTERS
from training import fit

CALM = """
extends: [model/mlm_tiny, data/text_classification, optim/adamw, trainer/default]
model: {dim: 16, depth: 1, heads: 2, encoding: rope}
data: {length: 8, val: 0.2, test: 0.2, batch_size: 4}
task: classification
trainer: {max_epochs: 1, accelerator: cpu}
"""


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


def test_texts_are_named_by_their_classes(calm, predict_json, tmp_path):
    for name, words in (("a.txt", "abc"), ("b.txt", LETTERS[:40]), ("c.txt", "")):
        (tmp_path / name).write_text(words)
    found = predict_json(calm / "run", ".")
    assert [one["path"] for one in found["predictions"]] == ["a.txt", "b.txt"]
    assert {each["label"] for each in found["predictions"][0]["top"]} == {"calm", "wild"}
    assert [one["problem"] for one in found["skipped"]] == ["empty"]
    (alone,) = predict_json(calm / "run", "a.txt")["predictions"]
    assert alone["probability"] == pytest.approx(found["predictions"][0]["probability"], abs=1e-6)


def test_texts_with_labels_are_measured_at_other_lengths(calm, zoo):
    overrides = [f"data.path={calm / 'b.jsonl'}", "evaluate.lengths=[4,8]", "--json"]
    code, out, message = zoo("eval", calm / "run", *overrides)
    assert code == 0, message
    found = json.loads(out)
    metrics = {one["name"]: one["metrics"] for one in found["conditions"]}
    assert metrics.keys() == {"trained", "4", "8"}
    assert metrics["8"] == metrics["trained"] == found["metrics"]
    assert metrics["4"]["test/loss"] != found["metrics"]["test/loss"]


def test_a_run_on_labelled_texts_reads_as_many_classes(calm, zoo):
    code, _, message = zoo("eval", calm / "run", f"data.path={calm / 'b.jsonl'}", "data.classes=5")
    assert code == 2
    assert "data.classes: 5 classes, but the model was trained with 2" in message


@pytest.fixture
def folders(tmp_path):
    """A folder with a test split alone, whose texts are told apart by the folders of these names."""

    def write(*names):
        for number in range(6):
            file = tmp_path / "-".join(names) / "test" / names[number % 2] / f"{number}.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(LETTERS[number : number + 9])
        return tmp_path / "-".join(names)

    return write


def test_a_test_split_alone_is_measured_by_the_names_of_its_classes(calm, zoo, folders):
    shown = []
    for words in ([], ["data.classes=[wild,calm]"]):
        overrides = [
            f"data.path={folders('calm', 'wild')}",
            "data.test=test",
            "data.val=validation",
            *words,
        ]
        code, out, message = zoo("eval", calm / "run", *overrides, "--json")
        assert code == 0, message
        shown.append(json.loads(out))
    assert shown[0]["metrics"] == shown[1]["metrics"]
    assert shown[0]["count"] == 6


def test_a_run_is_not_measured_against_classes_of_other_names(calm, zoo, folders):
    for words in ([], ["data.classes=[sweet,sour]"]):
        code, _, message = zoo(
            "eval", calm / "run", f"data.path={folders('sweet', 'sour')}", "data.test=test", *words
        )
        assert code == 2
        assert "data.classes: " in message
        assert "not calm, wild" in message


def test_data_that_is_not_as_told_makes_no_run_directory(zoo, folders, tmp_path):
    path = folders("calm", "wild")
    (tmp_path / "calm.yaml").write_text(CALM)
    splits = ["data.train=test", "data.val=0.2", "data.test=0.2"]
    code, _, message = zoo("fit", "calm.yaml", f"data.path={path}", *splits, "data.classes=[a,b]")
    assert code == 2
    assert "data.classes: " in message
    assert "has the classes calm, wild, not a, b" in message
    code, _, message = zoo(
        "fit", "calm.yaml", f"data.path={path}", *splits, "data.classes=2", "data.text=words"
    )
    assert code == 4
    assert "no column words" in message
    assert not (tmp_path / "runs").exists()
