"""Weights that are none, and sizes that a file cannot mean, are told before anything is allocated."""

import io
import json
import re
import zipfile

import pytest
import torch
from torch import nn

import zoo
from zoo.data.corpus.tokenizer import parse_tokenizer, train_bpe
from zoo.errors import CheckpointError, DataError, RecipeError
from zoo.models.transformer import BlockOptions
from zoo.options import Choice
from zoo.run.checkpoint import load_plain
from zoo.weights import check_sizes, count_numbers, describe_fault, find_repeated, limit_model

transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

WEIGHTS = {f"layers.{number}": torch.ones(8, 8) for number in range(4)}
SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
}


@pytest.mark.parametrize(
    ("weight", "fault"),
    [
        (torch.ones(3), ""),
        (torch.ones(3, dtype=torch.bfloat16), ""),
        (torch.ones(0), ""),
        (torch.tensor([1.0, float("nan"), float("-inf")]), "has 2 of 3 numbers that are NaN"),
        (torch.ones(3, dtype=torch.int8), "is int8, not floating point"),
        (torch.ones(3, dtype=torch.bool), "is bool, not floating point"),
        (torch.ones(3).to(torch.float8_e4m3fn), "is float8_e4m3fn, not floating point"),
        (torch.ones(1).expand(10**12), "repeats fewer numbers than its shape has"),
        (torch.ones(3).to_sparse(), "is no plain tensor"),
        (torch.ones(3, device="meta"), "is no plain tensor"),
    ],
)
def test_what_is_no_weight_is_told(weight, fault):
    assert fault in describe_fault(weight)
    assert bool(describe_fault(weight)) == bool(fault)


def test_numbers_that_share_memory_count_once():
    table = torch.ones(6, 2)
    assert count_numbers({"a": table, "b": table.T, "c": table[:1]}) == 12
    assert find_repeated({"a": table, "b": table[:1].expand(9, 2)}) == [
        "b [9, 2] repeats fewer numbers than its shape has"
    ]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"depth": 4, "dim": 8, "position": 10**9, "rope_theta": 10**9}, ""),
        ({"depth": 5}, r"depth is 5, but the file has 4 tensors"),
        ({"text": {"num_hidden_layers": 10**9}}, r"text.num_hidden_layers is 1,000,000,000"),
        ({"dim": 2**21}, r"dim is 2,097,152, but the file has 256 numbers"),
        ({"heads": [1, 10**30]}, r"heads.1 is 1,000,000,"),
        ({"encoding": (Choice("fire", {"width": 10**9}),)}, r"encoding.0.options.width is 1,0"),
        ({"block": BlockOptions()}, ""),
    ],
)
def test_sizes_are_compared_with_the_weights(options, problem):
    if not problem:
        return check_sizes(options, WEIGHTS, "config.json")
    with pytest.raises(CheckpointError, match=f"config.json: {problem}"):
        check_sizes(options, WEIGHTS, "config.json")
    return None


def test_a_model_is_stopped_where_it_exceeds_its_weights():
    with limit_model(WEIGHTS, "it"), torch.device("meta"):
        nn.Linear(16, 16)
    with (
        pytest.raises(CheckpointError, match=r"it: its model has more than .* numbers"),
        limit_model(WEIGHTS, "it"),
        torch.device("meta"),
    ):
        nn.Linear(2**20, 2**20)
    with (
        pytest.raises(CheckpointError, match=r"it: its model has more than .* modules"),
        limit_model(WEIGHTS, "it"),
        torch.device("meta"),
    ):
        nn.Sequential(*(nn.Identity() for _ in range(20_000)))
    # nothing stays behind
    nn.Sequential(*(nn.Identity() for _ in range(20_000)))


def publish(folder, kind="Llama", **options):
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **options})
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    model.save_pretrained(folder)
    return model


def change_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1,000,000,000, but the file has"),
        ({"hidden_size": 10**9, "head_dim": None}, "hidden_size is 1000000000, but model.embed"),
        ({"vocab_size": 10**9}, "vocab_size is 1000000000, but model.embed_tokens.weight [50, 16]"),
        (
            {"max_position_embeddings": 10**9},
            "max_position_embeddings: must be from 1 to 33554432, got 1000000000",
        ),
        (
            {"intermediate_size": 10**30},
            "intermediate_size: must be at most 2147483647, got 1000000",
        ),
        ({"num_attention_heads": 0}, "num_attention_heads: must be at least 1, got 0"),
        ({"num_hidden_layers": "many"}, "num_hidden_layers: expected an integer, got 'many'"),
        ({"hidden_size": -16}, "hidden_size: must be at least 1, got -16"),
        ({"num_hidden_layers": -1}, "num_hidden_layers: must be at least 1, got -1"),
        (
            {"intermediate_size": 48},
            "intermediate_size is 48, but model.layers.0.mlp.up_proj.weight",
        ),
    ],
)
def test_published_sizes_are_those_of_the_weights(tmp_path, changes, problem):
    publish(tmp_path / "it")
    change_config(tmp_path / "it", **changes)
    with pytest.raises(CheckpointError, match=re.escape(problem)) as error:
        zoo.convert(tmp_path / "it", to=tmp_path / "run")
    assert str(tmp_path / "it") in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda one: one.fill_(float("nan")), "has 256 of 256 numbers that are NaN or infinite"),
        (lambda one: one.to(torch.int8), "is int8, not floating point"),
    ],
)
def test_published_numbers_are_numbers(tmp_path, change, problem):
    publish(tmp_path / "it")
    file, name = tmp_path / "it" / "model.safetensors", "model.layers.1.self_attn.o_proj.weight"
    weights = safetensors.load_file(file)
    safetensors.save_file({**weights, name: change(weights[name])}, file)
    with pytest.raises(CheckpointError, match=f"damaged.*\n  {name} {problem}"):
        zoo.convert(tmp_path / "it", to=tmp_path / "run")


@pytest.fixture
def equipped(tmp_path):
    model = publish(tmp_path / "it")
    zoo.equip(model, "fox")
    return zoo.save(model, tmp_path / "saved")


@pytest.mark.parametrize(
    "name", ["pipeline", "AutoModel", "LlamaConfig", "os", "_x", "a.b", "GPT2Model"]
)
def test_nothing_but_a_model_of_its_configuration_is_called(equipped, name, monkeypatch):
    def call(*words, **options):
        pytest.fail("it was called")

    monkeypatch.setattr(transformers, "pipeline", call)
    entry = json.loads((equipped / "config.json").read_text())["zoo"]
    change_config(equipped, zoo={**entry, "class": name})
    with pytest.raises(CheckpointError, match=r"config.json: .* is no model of .*; nothing of it"):
        zoo.load(equipped)


def test_code_that_transformers_would_download_is_not_asked_for(equipped):
    change_config(
        equipped,
        attn_implementation="someone/kernel",
        _attn_implementation="someone/kernel",
        quantization_config={"quant_method": "bitsandbytes"},
        auto_map={"AutoModel": "someone/code--modeling.Model"},
    )
    assert "kernel" not in zoo.load(equipped).config._attn_implementation


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1,000,000,000"),
        ({"hidden_size": 10**9}, "hidden_size is 1,000,000,000"),
        ({"zoo": None}, "describes no model"),
        ({"zoo": {}}, "its entry zoo is damaged: KeyError"),
        ({"intermediate_size": 32}, "its configuration and its weights make no model"),
    ],
)
def test_saved_sizes_are_those_of_the_weights(equipped, changes, problem):
    change_config(equipped, **changes)
    with pytest.raises(CheckpointError, match=problem) as error:
        zoo.load(equipped)
    assert str(equipped) in str(error.value)


def test_compressed_pickles_are_refused(tmp_path):
    plain, packed = io.BytesIO(), io.BytesIO()
    torch.save({"a": torch.zeros(1000)}, plain)
    assert load_plain(plain)["a"].shape == (1000,)
    with zipfile.ZipFile(plain) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for member in old.infolist():
            new.writestr(member.filename, old.read(member))
    with pytest.raises(ValueError, match="compressed"):
        load_plain(packed)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "null",
        "[1]",
        "x",
        "\0",
        '{"model": {}}',
        '{"model": {"type": "BPE"}}',
        "gap",
        "cut",
    ],
)
def test_damaged_tokenizers_are_told(text):
    whole = train_bpe(["a row of boats"], 260).json
    if text == "cut":
        text = whole[:1000]
    if text == "gap":
        text = json.loads(whole)
        text["model"]["vocab"]["a"] = 2**31
        text = json.dumps(text)
    assert len(parse_tokenizer(whole).get_vocab()) == 260
    with pytest.raises(DataError, match="not the JSON of a tokenizer"):
        parse_tokenizer(text)


@pytest.mark.parametrize("key", ["depth", "heads"])
def test_recipes_have_a_bound_of_layers_and_heads(key):
    with pytest.raises(RecipeError, match=rf"model.{key}: must be from 1 to .*, got 1000000000"):
        zoo.load_recipe("lm_rope", {f"model.{key}": 10**9})
