"""`zoo audit` on folders: tables, JSON and exit codes."""

import json

import planted
import pytest

from zoo.auditing import model_folder
from zoo.cli import main


@pytest.fixture
def folder(tmp_path):
    planted.build_decoder().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_sound_folder_ends_with_0(folder, capsys):
    out = folder.parent / "audit.json"
    assert main(["audit", str(folder), "laws=[cache,rotary]", f"out={out}", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["is_sound"]
    assert json.loads(out.read_text())["results"] == printed["results"]


def test_a_configuration_alone_is_built_small(folder, capsys):
    (folder / "model.safetensors").unlink()
    assert main(["audit", str(folder), "laws=[future,save]"]) == 0
    assert "LlamaForCausalLM" in capsys.readouterr().out


def test_a_broken_law_ends_with_1(folder, capsys, monkeypatch):
    broken = planted.FAULTS["table_ends"][0]()
    monkeypatch.setattr(model_folder, "load_folder", lambda folder, options: broken)
    assert main(["audit", str(folder), "laws=[rotary]"]) == 1
    captured = capsys.readouterr()
    assert "BROKEN" in captured.out
    assert "positions from 1,000 have the angles of position 999" in captured.err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["nowhere"], 2, "no such folder"),
        (["model", "laws=[cach]"], 2, "did you mean cache"),
        (["model", "out=audit.txt"], 2, "ends neither in .json nor in .html"),
        (["model", "size=tiny"], 2, "small"),
        (["damaged"], 5, "holds no model that loads"),
    ],
)
def test_wrong_words_name_the_remedy(folder, words, code, message, capsys, monkeypatch):
    monkeypatch.chdir(folder.parent)
    (folder.parent / "damaged").mkdir()
    (folder.parent / "damaged" / "config.json").write_text("{}")
    assert main(["audit", *words]) == code
    assert message in capsys.readouterr().err


def test_small_models_have_each_kind_of_layer_twice():
    from transformers import AutoConfig

    config = AutoConfig.for_model("gemma3_text", num_hidden_layers=24)
    small = model_folder.shrink(config)
    kinds = small.layer_types
    assert len(kinds) == small.num_hidden_layers < 24
    assert all(kinds.count(kind) >= 2 for kind in set(config.layer_types))
    assert small.rope_parameters == config.rope_parameters
    assert small.sliding_window == config.sliding_window
