"""Benchmarks, verification, export and conversion from Python: typed options in, typed results out."""

import pytest
from tiny import TINY
from untrained import write_checkpoint

import zoo
from zoo.benchmark.result import BenchResult
from zoo.options import Choice

QUICK = {"shape": "lm_toy", "device": "cpu", "rounds": 1, "peers": False, "measures": "layer"}


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def list_lines(error):
    return [line.strip() for line in str(error).splitlines()[1:]]


def test_a_benchmark_takes_encodings_in_every_form(tmp_path):
    encodings = ["fox", {"name": "liere", "block": 4}, ["kerple", "dape"], Choice("alibi")]
    result = zoo.bench(encodings, against="none", to=tmp_path / "out", **QUICK)
    names = [row.name for row in result.rows]
    assert names == ["none", "fox", "liere(block=4)", "kerple+dape", "alibi"]
    assert len(result.chart().to_dict(validate=False)["concat"]) == 1
    assert BenchResult.read(tmp_path / "out" / "bench.json").rows == result.rows


def test_a_benchmark_names_all_mistakes_as_arguments():
    with pytest.raises(zoo.RecipeError) as caught:
        zoo.bench(["rop", "rope"], against="fix", rounds=0, shappe="lm_toy")
    with pytest.raises(
        zoo.RecipeError, match=r"argument: layers\.0: all layers of lm_rope are alike"
    ):
        zoo.bench(layers=["lm_rope"], shape="lm_toy")
    assert list_lines(caught.value) == [
        "argument: shappe: unknown key; did you mean shape?",
        "argument: rounds: must be from 1 to 16777216, got 0",
        "argument: encodings.0: there is no 'rop' among encodings; did you mean rope?",
        "argument: against: there is no 'fix' among encodings; did you mean fox?",
    ]


def test_remedies_are_spelt_for_python(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(zoo.RecipeError, match='torch finds no GPU here; write device="cpu"'):
        zoo.bench(["rope"], device="cuda")


def test_a_verification_returns_certificates(tmp_path):
    result = zoo.verify(
        ["dape", {"name": "rope", "base": 50.0}], laws=["shapes_are_kept"], to=tmp_path / "found"
    )
    assert [one.name for one in result.certificates] == ["alibi+dape", "rope(base=50.0)"]
    assert {each.outcome for one in result.certificates for each in one.findings} == {"kept"}
    assert [one["name"] for one in result.to_dict()["certificates"]] == [
        "alibi+dape",
        "rope(base=50.0)",
    ]
    result.raise_if_broken()


def test_a_verification_names_all_mistakes():
    with pytest.raises(zoo.RecipeError) as caught:
        zoo.verify("rop", laws=["shape_is_kept"])
    assert list_lines(caught.value) == [
        "argument: laws: there is no law 'shape_is_kept'; did you mean shapes_are_kept?",
        "argument: encodings: there is no 'rop' among encodings; did you mean rope?",
    ]


def test_an_exported_model_is_loaded_again(tmp_path):
    pytest.importorskip("safetensors")
    write_checkpoint(tmp_path / "run", "vit_comrope", TINY)
    result = zoo.export(tmp_path / "run", tmp_path / "out", "safetensors")
    assert result.files == ("model.safetensors", "recipe.yaml")
    assert result.to_dict()["folder"] == str(tmp_path / "out")
    first, second = (zoo.load(tmp_path / name).state_dict() for name in ("run", "out"))
    assert all((first[name] == second[name]).all() for name in first)


def test_an_unknown_format_is_refused(tmp_path):
    with pytest.raises(zoo.RecipeError, match="argument: to: expected one of"):
        zoo.export(tmp_path / "run", tmp_path / "out", "onxx")
    assert not (tmp_path / "out").exists()
