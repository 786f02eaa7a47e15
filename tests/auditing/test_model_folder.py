"""`zoo audit` on folders: tables, JSON and exit codes."""

import json

import planted
import pytest
from transformers import AutoConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from zoo.auditing import model_folder
from zoo.auditing.model_subjects import make_subject
from zoo.cli import main
from zoo.errors import OptionError

BUILT = {
    "bamba": "entries that follow from the number of heads",
    "dots3_note": "entries that differ among layers",
    "esmc": "heads that fill the states",
    "gemma4_text": "widths of heads that differ among layers",
    "helium": "heads that fill the states",
    "jamba": "kinds of layers by a period",
    "prophetnet": "numbers of layers by other names",
    "zamba2": "numbers of layers in a list",
}
REFUSED = {
    "align_text_model": "a part of other models",
    "chinese_clip": "an image, too",
    "musicgen": "several text parts",
    "t5": "a decoder's tokens, too",
}


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
    config = AutoConfig.for_model("gemma3_text", num_hidden_layers=24)
    small = model_folder.shrink(config)
    kinds = small.layer_types
    assert len(kinds) == small.num_hidden_layers < 24
    assert all(kinds.count(kind) >= 2 for kind in set(config.layer_types))
    assert small.rope_parameters == config.rope_parameters
    assert small.sliding_window == config.sliding_window


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in {**BUILT, **REFUSED} else pytest.mark.nightly)
        for name in sorted(CONFIG_MAPPING_NAMES)
    ],
)
def test_a_configuration_is_built_small_or_refused_by_name(name):
    try:
        config = AutoConfig.for_model(name)
    # Some classes have no configuration without arguments.
    except Exception as error:
        pytest.skip(f"no default configuration: {error}")
    refusal = ""
    try:
        make_subject(model_folder.build_small(config))
    except OptionError as error:
        refusal = str(error)
    assert name not in BUILT or not refusal
    assert name not in REFUSED or refusal
    assert not refusal or "; pass " in refusal


def test_kinds_by_numbers_of_layers_are_kept():
    config = AutoConfig.for_model("bamba", num_hidden_layers=12, attn_layer_indices=[2, 5, 8])
    small = model_folder.shrink(config)
    assert small.num_hidden_layers == 6
    assert small.attn_layer_indices == [2, 5]
    assert small.mamba_n_heads * small.mamba_d_head == small.mamba_expand * small.hidden_size


def test_layers_that_share_keys_follow_those_that_make_them():
    small = model_folder.shrink(AutoConfig.for_model("gemma3n_text"))
    makers = small.layer_types[: small.num_hidden_layers - small.num_kv_shared_layers]
    assert small.num_kv_shared_layers > 0
    assert set(makers) == set(small.layer_types)
