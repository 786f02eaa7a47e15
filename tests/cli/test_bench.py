"""`zoo bench`: what it writes, and what is refused before anything is measured."""

import json
from pathlib import Path
from signal import SIGTERM, raise_signal

import pytest

from zoo.utils import Ticker

QUICK = ("shape=lm_toy", "device=cpu", "rounds=2", "peers=false")


def test_encodings_are_compared(zoo):
    code, out, _ = zoo("bench", "fox", "[alibi, dape]", *QUICK)
    assert code == 0
    assert {"rope", "fox", "alibi+dape"} <= {*out.split()}
    assert {path.name for path in Path("bench").iterdir()} == {
        "bench.json",
        "bench.md",
        "bench.png",
        "bench.svg",
        "bench.pdf",
        "table.tex",
        "table.csv",
    }
    assert Path("bench/bench.md").read_text() == out


def test_the_result_is_one_json_object(zoo):
    _, out, _ = zoo(
        "bench", "{name: fire, hidden: 4}", *QUICK, "--json", "lengths=[64,32]", "measures=train"
    )
    found = json.loads(out)
    assert found == json.loads(Path("bench/bench.json").read_text())
    assert [(row["name"], row["length"]) for row in found["rows"]] == [
        ("rope", 32),
        ("fire(hidden=4)", 32),
        ("rope", 64),
        ("fire(hidden=4)", 64),
    ]
    row = found["rows"][1]
    assert len(row["values"]) == len(row["ratios"]) == 2
    assert found["machine"]["threads"] >= 1


def test_decoding_is_measured(zoo):
    path = Path("mixed.yaml")
    path.write_text(
        "extends: lm_rope\n"
        "model: {layer_types: {local: {window: 2}, global: {}}, layer_pattern: [local, global]}\n"
    )
    sizes = ("prompt=4", "tokens=2", "contexts=[4,8]", "rounds=1")
    code, out, _ = zoo("bench", "none", *QUICK, "layers=[mixed.yaml]", "measures=decode", *sizes)
    assert code == 0
    assert "## Decoding, 2 tokens after 4" in out
    assert "cache MB at 8" in out
    rows = json.loads(Path("bench/bench.json").read_text())["rows"]
    caches = {
        row["name"]: row["values"]
        for row in rows
        if row["measure"] == "cache" and row["length"] == 8
    }
    token = 2 * 4 * 32  # bytes of a key and a value of lm_toy
    assert caches == {"rope": [16 * token], "none": [16 * token], "layers of mixed": [9 * token]}


def test_what_does_not_apply_is_told_and_left_out(zoo, caplog):
    code, out, _ = zoo(
        "bench", "fox", "alibi", "peers=false", "shape=vit_toy", "measures=layer", "rounds=1"
    )
    assert code == 0
    assert "fox is left out: fox takes 1 axis, not 2" in caplog.text
    assert "Left out, since they do not apply (bench.json says why): fox" in out


def test_a_signal_leaves_what_is_done(zoo, monkeypatch):
    monkeypatch.setattr(
        Ticker, "__call__", lambda self, text: raise_signal(SIGTERM) if "round 3" in text else None
    )
    code, out, message = zoo("bench", "alibi", *QUICK, "rounds=9")
    assert code == 143
    assert out.startswith("PARTIAL")
    assert "stopped by SIGTERM" in message
    assert json.loads(Path("bench/bench.json").read_text())["partial"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rop"], "rop: there is no 'rop' among encodings; did you mean rope?"),
        (["{name: liere, blok: 4}"], "unknown key; did you mean block?"),
        (["{name: "], "{name: : bad YAML"),
        (["fox+fox"], "the list names an encoding twice"),
        (["dape"], "dape: dape adapts the biases of encodings before it"),
        (["rope_axial"], "rope_axial: rope_axial takes 2 or 3 axes, not 1"),
        (["rope", "against=fix"], "against: there is no 'fix' among encodings; did you mean fox?"),
        (["rope", "against=dape"], "against: dape adapts"),
        (["roundz=3"], "roundz: unknown key; did you mean rounds?"),
        (["rounds=0"], "rounds: must be from 1 to"),
        (["rope", "measures=[]"], "measures: the list is empty"),
        (["shape=lm_toi"], "shape: expected one of"),
        (
            ["shape=vit_toy", "lengths=33"],
            "lengths: patch_size 8 does not divide images of 33 x 33",
        ),
        (["none", "shape=vit_toy", "measures=decode"], "measures: images are not decoded"),
        (["layers=[lm_gemma]", "measures=layer"], "remove layer, or leave out layers"),
        (["layers=[lm_rope]"], "layers.0: all layers of lm_rope are alike"),
        (["layers=lm_gemma"], "expected a list"),
        (["lm_gemma"], "give a recipe whose layers differ as layers=[...]"),
        (["lengths=[1,x]"], "lengths.1: expected an integer"),
        (["lengths=0"], "lengths: must be"),
        (["rope", "lengths=16777217"], "lengths: must be"),
        (["rope", "batch=99999999999"], "batch: must be from 1 to 16777216"),
        (["device=tpu"], "device: "),
        (
            ["rope", "to=no/such/folder"],
            "to: no/such/folder cannot be written, No such file or directory",
        ),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_a_mistake_is_told(words, message, zoo):
    code, out, error = zoo(
        "bench", *words, *(() if any("shape=" in word for word in words) else ("shape=lm_toy",))
    )
    assert (code, out) == (2, "")
    assert message in error
    assert not Path("bench").exists()


def test_all_mistakes_are_told_at_once(zoo):
    words = ("rop", "roundz=3", "rounds=0", "shape=lm_toi", "device=tpu", "lengths=x")
    _, _, error = zoo("bench", *words)
    assert error.startswith("zoo: 6 config errors")


def test_the_command_repeats_it(zoo):
    _, out, _ = zoo("bench", "rope", *QUICK, "measures=train", "--plugin", "zoo", "--json")
    assert "--plugin zoo" in json.loads(out)["command"]


def test_a_gpu_that_is_not_there_is_told(zoo, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert zoo("bench", "device=cuda")[0] == 2


def test_a_folder_with_other_files_is_refused(zoo, tmp_path):
    (tmp_path / "notes.txt").touch()
    code, _, message = zoo("bench", "rope", *QUICK, "to=.")
    assert code == 2
    assert "to: . holds other files, notes.txt among them" in message
