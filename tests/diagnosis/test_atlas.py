"""`zoo atlas` of shipped models and of models in memory: files, table, stops and wrong words."""

import json
import os
import signal

import pytest
import torch

import zoo as package
from tests.planted_heads import build_induction
from zoo.diagnosis import atlas
from zoo.diagnosis.atlas_report import AtlasReport, AtlasRun
from zoo.diagnosis.page import atlas_page

SMALL = {"samples": 3, "queries": 8, "length": 8, "ablations": 2}
WORDS = [f"{key}={value}" for key, value in SMALL.items()]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The atlas of two language models, with few measurements."""
    folder = tmp_path_factory.mktemp("atlas") / "out"
    return package.atlas(["zoo:lm_rope", "zoo:lm_fox"], to=folder, verbose=None, **SMALL)


def test_the_folder_has_a_page_a_table_and_numbers(written):
    assert {path.name for path in written.path.iterdir()} == {
        "atlas.html",
        "atlas.md",
        "atlas.json",
    }
    page = (written.path / "atlas.html").read_text(encoding="utf-8")
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "induction" in page
    assert json.loads((written.path / "atlas.json").read_text()) == written.to_dict()
    assert "heads: previous token" in written.table()
    rope, fox = written.report.runs
    assert len(rope.ablated) == len(fox.ablated) == 2
    assert len(rope.frequencies) == 4
    assert fox.frequencies == ()
    assert fox.absent["frequencies"] in (written.path / "atlas.md").read_text()


def test_stored_numbers_are_read_as_they_were(written):
    for run in written.to_dict()["runs"]:
        again = AtlasRun.from_dict(run)
        report = AtlasReport(version="", made="", runs=(again,))
        assert atlas_page.to_dict(report)["runs"] == [run]


def test_what_was_measured_is_not_measured_again(written, monkeypatch):
    names = ["zoo:lm_rope", "zoo:lm_fox"]

    def fail(*_):
        raise AssertionError

    before = (written.path / "atlas.json").read_text()
    with monkeypatch.context() as patch:
        patch.setattr(atlas, "map_subject", fail)
        again = package.atlas(names, to=written.path, verbose=None, **SMALL)
        assert [run.name for run in again.report.runs] == ["lm_rope", "lm_fox"]
        # of other options it is
        with pytest.raises(AssertionError):
            package.atlas(names, to=written.path, verbose=None, **{**SMALL, "queries": 4})
    assert (
        json.loads(before)["runs"] == json.loads((written.path / "atlas.json").read_text())["runs"]
    )


def test_a_stop_in_the_middle_keeps_the_finished_models(tmp_path, monkeypatch):
    measure = atlas.map_subject

    def stop(subject, *given):
        if subject.name == "lm_fox":
            os.kill(os.getpid(), signal.SIGTERM)
        return measure(subject, *given)

    monkeypatch.setattr(atlas, "map_subject", stop)
    with pytest.raises(package.ZooError, match="1 of 2 models are in") as caught:
        package.atlas(["zoo:lm_rope", "zoo:lm_fox"], to=tmp_path, verbose=None, **SMALL)
    assert caught.value.code == 143
    stored = json.loads((tmp_path / "atlas.json").read_text())["runs"]
    assert [run["name"] for run in stored] == ["lm_rope"]


def test_an_image_model_has_neighbours_and_no_copies(tmp_path):
    options = {**SMALL, "length": None}
    found = package.atlas("zoo:vit_comrope", to=tmp_path, verbose=None, **options).report.runs[0]
    names = {job.name for job in found.jobs}
    assert {"left", "above", "same"} <= names
    assert not names & {"induction", "duplicate", "previous"}
    assert found.unit == "patches"
    assert all(one.repeated is None and one.given.metric == "loss" for one in found.ablated)
    assert len(found.frequencies) == 6


FAULTS = {
    "no run": ([], 2, "nothing to map"),
    "an unknown run": (["nowhere"], 5, "nowhere: no such checkpoint"),
    "unknown weights": (["zoo:lm_ropee"], 5, "did you mean zoo:lm_rope?"),
    "a run named twice": (["zoo:lm_rope", "zoo:lm_rope"], 2, "named twice"),
    "a length for images": (
        ["zoo:vit_comrope", "length=8"],
        2,
        "length: vit_comrope reads no text with a next token",
    ),
    "a short text": (["zoo:lm_rope", "length=3"], 2, "length: a random text of 3 tokens"),
    "no samples": (["zoo:lm_rope", "samples=0"], 2, "samples"),
    "a negative number": (["zoo:lm_rope", "ablations=-1"], 2, "ablations"),
    "a file for a folder": (["zoo:lm_rope", "to=file"], 2, "to: file is a file"),
    "somebody's file": (["zoo:lm_rope", "to=taken"], 2, "is no atlas"),
    "a misspelt option": (["zoo:lm_rope", "lenght=8"], 2, "did you mean length?"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_word_is_named_with_the_way_on(fault, zoo, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "atlas.json").write_text("{}")
    words, code, problem = FAULTS[fault]
    found, out, message = zoo("atlas", *words)
    assert (found, problem in message, "Traceback" in message) == (code, True, False), message
    assert out == ""


def test_the_command_prints_the_table_or_json(zoo, tmp_path):
    code, out, message = zoo("atlas", "zoo:lm_rope", *WORDS, f"to={tmp_path}")
    assert code == 0, message
    assert "heads: induction" in out
    assert out.strip().endswith("atlas.html")
    code, out, _ = zoo("atlas", "--json", "zoo:lm_rope", *WORDS, f"to={tmp_path}")
    assert [run["name"] for run in json.loads(out)["runs"]] == ["lm_rope"]


def test_a_model_of_transformers_is_mapped(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=60,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.randint(3, 60, (3, 24))
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    batch = {"input_ids": ids, "attention_mask": mask}
    before = model(**batch).logits
    found = package.atlas(model, batch, to=tmp_path, verbose=None, ablations=3).report.runs[0]
    assert {job.name for job in found.jobs} == {
        *("previous", "first", "same", "induction", "duplicate")
    }
    assert [one.given.metric for one in found.ablated] == ["loss"] * 3
    assert len(found.frequencies) == 2
    torch.testing.assert_close(model(**batch).logits, before)

    # without a head of the vocabulary, the change of the output is measured
    bare = package.atlas(model.model, batch, to=tmp_path, verbose=None, ablations=1).report.runs[0]
    assert bare.ablated[0].given.metric == "change of the output"
    assert bare.ablated[0].given.mean > 0


@pytest.mark.parametrize(
    ("batch", "options", "key"),
    [
        (torch.randint(16, (2, 10)), {}, "texts of 10 tokens leave 5 to repeat"),
        (torch.randint(16, (2, 40)), {"data": {}}, "data"),
    ],
)
def test_what_does_not_apply_to_a_model_is_refused(batch, options, key, tmp_path):
    with pytest.raises((package.RecipeError, package.OptionError), match=key):
        package.atlas(build_induction(), batch, to=tmp_path, verbose=None, **options)


def test_a_model_without_attention_is_refused(tmp_path):
    with pytest.raises(package.OptionError, match="no model of transformers or timm"):
        package.atlas(torch.nn.Linear(3, 3), torch.ones(2, 3), to=tmp_path, verbose=None)


class WithLogits(torch.nn.Module):
    """A model whose output is named, as those of transformers are."""

    def __init__(self, model):
        super().__init__()
        self.inner = model

    def forward(self, tokens):
        return {"logits": self.inner(tokens)}


def test_a_planted_pair_of_layers_is_found_by_the_whole_atlas(tmp_path):
    draw = torch.Generator().manual_seed(0)
    batch = torch.randint(16, (4, 24), generator=draw)
    model = WithLogits(build_induction())
    found = package.atlas(model, batch, to=tmp_path, verbose=None).report.runs[0]
    scores = {job.name: job.values[:, 0] for job in found.jobs}
    assert scores["previous"][0] > 0.9 > 0.2 > scores["previous"][1]
    assert scores["induction"][1] > 0.9 > 0.2 > scores["induction"][0]
    # either layer is needed to complete copies
    assert [one.layer for one in found.ablated] == [0, 1]
    assert all(one.repeated.mean > 2 for one in found.ablated)
