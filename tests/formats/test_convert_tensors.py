"""The tensors of a published model decide, not the flags of its configuration about them."""

import logging
import re
from functools import partial
from pathlib import Path

import pytest
import torch
from decoders import DECODERS, FIXED_WIDTH, OTHERS, build, build_other, change_config
from parts import mark_others

from zoo.errors import CheckpointError
from zoo.formats import convert as converting
from zoo.formats import transformers_outputs
from zoo.formats.convert import ConvertOptions, build_family, convert_family, read_published
from zoo.formats.published import Pool, Published

transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

CLOSE = {"atol": 1e-5, "rtol": 1e-5}
TOKENS = torch.randint(1, 50, (2, 30), generator=torch.Generator().manual_seed(1))
HEAD = "lm_head.weight"
OFTEN = ("Llama", "Gemma3", "Phi3", "GPT2", "Qwen3Next")
"""Families whose tensors or rules are read in ways of their own, and one of the common way."""


@pytest.fixture
def alone(monkeypatch):
    """Leave out the comparison with transformers, which would notice what tensors must tell."""
    monkeypatch.setattr(converting, "can_compare", lambda published: False)


def publish(folder, name, **changes):
    build(transformers, name, **changes).save_pretrained(folder)
    return safetensors.load_file(folder / "model.safetensors")


def write(folder, weights):
    safetensors.save_file(weights, folder / "model.safetensors", {"format": "pt"})


def convert(folder):
    """Convert a folder without writing the run."""
    return convert_family(read_published(folder), folder, ConvertOptions(to="run"), {})


@torch.no_grad()
def agree(folder):
    """Compare the model of zoo with what transformers loads from the same folder."""
    model = convert(folder).task.model.eval()
    other, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True
    )
    assert not info["missing_keys"], "a weight started at random"
    right = other.eval()(TOKENS).logits
    bounds = {**CLOSE, "atol": 1e-5 * max(1.0, float(right.abs().max()))}
    torch.testing.assert_close(model(TOKENS), right, **bounds)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", mark_others(DECODERS, OFTEN))
def test_the_head_is_the_one_that_the_file_has(tmp_path, name):
    weights = publish(tmp_path, name, tie_word_embeddings=False)
    table = next(key for key in weights if key.endswith(("embed_tokens.weight", "wte.weight")))

    # a head of its own, whatever the flag says
    change_config(tmp_path, tie_word_embeddings=True)
    agree(tmp_path)
    change_config(tmp_path, tie_word_embeddings=False)
    agree(tmp_path)

    # no head: only a flag that says tied explains it
    head = weights.pop(HEAD)
    write(tmp_path, weights)
    with pytest.raises(CheckpointError, match=f"tie_word_embeddings is false.* no {HEAD}.*set it"):
        convert(tmp_path)
    change_config(tmp_path, tie_word_embeddings=True)
    agree(tmp_path)

    # tied numbers written twice, or under the name of the head only
    write(tmp_path, {**weights, HEAD: weights[table].clone()})
    agree(tmp_path)
    write(tmp_path, {HEAD: head, **{key: one for key, one in weights.items() if key != table}})
    agree(tmp_path)


def take(settings, weights):
    """Return the weights of zoo that a family takes, and the names of those it misses."""
    pool = Pool(weights)
    family = build_family(Published("it", settings, weights), pool)
    sections, _ = family.describe()
    family.rename(sections["model"]["heads"])
    pool.drop(family.dropped)
    return pool


TENSORS = {
    **{name: partial(build, transformers, name, tie_word_embeddings=False) for name in DECODERS},
    **{name: partial(build_other, transformers, name) for name in OTHERS},
}


@pytest.mark.parametrize("name", mark_others(TENSORS, OFTEN + tuple(OTHERS)))
def test_every_tensor_is_used_and_none_is_missed(tmp_path, name):
    TENSORS[name]().save_pretrained(tmp_path)
    source = read_published(tmp_path)
    settings, weights = source.config, source.weights
    whole = take(settings, weights)
    assert not whole.missing
    assert not whole.rest
    for key, weight in weights.items():
        if ".0." in key:
            continue  # the layers have the same tensors
        if any(name.endswith(key) for name in whole.dropped):
            # heads of BERT, pooled outputs and no registers at all, which the result lists
            assert re.search(r"pooler|cls\.|mask_token", key) or not weight.numel(), key
            continue
        changed = take(settings, {**weights, key: 2 * weight + 1}).taken
        assert any(not torch.equal(whole.taken[one], changed[one]) for one in changed), key
        rest = {one: weight for one, weight in weights.items() if one != key}
        try:
            missing = take(settings, rest).missing
        except CheckpointError as error:
            missing = [str(error)]
        assert key in "; ".join(missing)
    for other in ("model.layers.1.strange.weight", "model.layers.2.mlp.up_proj.weight"):
        pool = take(settings, {**weights, other: torch.ones(3)})
        assert [key for key in pool.rest if key.endswith(other)], other


BIASES = {"attention_bias": "self_attn.q_proj.bias", "mlp_bias": "mlp.up_proj.bias"}
WITHOUT = [name for name in DECODERS if name not in ("GPT2", "Llama of biases")]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", mark_others(WITHOUT, OFTEN))
def test_a_flag_about_biases_that_the_file_contradicts_is_refused(tmp_path, name):
    weights = publish(tmp_path, name)
    for entry, bias in BIASES.items():
        has = any(key.endswith(bias) for key in weights)
        change_config(tmp_path, **{entry: not has})
        with pytest.raises(CheckpointError, match=f"{entry} is {not has}, but the file has"):
            convert(tmp_path)
        change_config(tmp_path, **{entry: has})
        convert(tmp_path)
        change_config(tmp_path, entry)
        if not has:
            place = f"model.layers.1.{bias}"
            write(tmp_path, {**weights, place: torch.ones(48 if "up" in bias else 32)})
            with pytest.raises(CheckpointError, match=place):
                convert(tmp_path)
            write(tmp_path, weights)


SIZES = ["hidden_size", "num_key_value_heads", "head_dim", "intermediate_size", "vocab_size"]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", mark_others([one for one in DECODERS if one != "GPT2"], OFTEN))
def test_sizes_are_those_of_the_tensors(tmp_path, name):
    publish(tmp_path, name)
    model = convert(tmp_path).recipe.model
    for entry in SIZES:
        if entry == "head_dim" and name in FIXED_WIDTH:
            continue
        config = tmp_path / "config.json"
        before = config.read_text()
        change_config(tmp_path, entry)
        assert convert(tmp_path).recipe.model == model, entry
        change_config(tmp_path, **{entry: 24})
        with pytest.raises(CheckpointError, match=f"{entry} is 24, but model.*weight .* has "):
            convert(tmp_path)
        config.write_text(before)


def test_rows_past_the_tokens_of_a_tokenizer_are_told(tmp_path, caplog):
    from zoo.data.corpus.tokenizer import train_bpe

    tokenizer = train_bpe(["one two three, four five six; seven eight"] * 5, 300)
    count = len(tokenizer)
    publish(tmp_path, "Llama", vocab_size=count + 4)
    (tmp_path / "tokenizer.json").write_text(tokenizer.json)
    with caplog.at_level(logging.INFO, "zoo"):
        convert(tmp_path)
    assert "left out: the last 4 rows of model.embed_tokens.weight" in caplog.text
    publish(tmp_path, "Llama", vocab_size=count - 1)
    problem = rf"tokenizer.json has {count} tokens, .* {count - 1} rows"
    with pytest.raises(CheckpointError, match=problem):
        convert(tmp_path)


def test_a_classifier_without_its_bias_is_refused(tmp_path):
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 48, "image_size": 16, "patch_size": 8}
    config = transformers.ViTConfig(**sizes, num_labels=3)
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    weights = safetensors.load_file(tmp_path / "model.safetensors")
    assert convert(tmp_path).difference < 1e-5
    # the tensor has as many classes as there are
    change_config(tmp_path, "id2label", "label2id")
    assert convert(tmp_path).difference < 1e-5
    write(tmp_path, {key: one for key, one in weights.items() if key != "classifier.bias"})
    with pytest.raises(CheckpointError, match=r"missing: classifier\.bias"):
        convert(tmp_path)
    write(tmp_path, weights)
    change_config(tmp_path, id2label={str(number): "x" for number in range(5)})
    with pytest.raises(CheckpointError, match="id2label has 5 classes, but the file has 3"):
        convert(tmp_path)


@pytest.mark.parametrize("name", ["Llama", "GPT2"])
def test_a_model_that_computes_something_else_is_refused(tmp_path, name, monkeypatch, caplog):
    publish(tmp_path, name)
    assert convert(tmp_path).difference < 1e-5
    family = converting.FAMILIES[name.lower()]
    rename = family.rename

    def shift(self, heads):
        rename(self, heads)
        self.pool.change(r"blocks\.1\.mlp\.down_proj\.weight", lambda weight: 1.01 * weight)

    with monkeypatch.context() as patch:
        patch.setattr(family, "rename", shift)
        with pytest.raises(CheckpointError, match=r"the logits of its recipe differ by .*nothing"):
            convert(tmp_path)

    def list_missing(distributions):
        return [*distributions]

    monkeypatch.setattr(transformers_outputs, "list_missing", list_missing)
    with caplog.at_level(logging.INFO, "zoo"):
        assert convert(tmp_path).difference is None
    assert "not compared with that of transformers, which is not installed" in caplog.text


def test_an_override_of_the_model_is_not_compared(tmp_path):
    """What the user changes differs from transformers; the weights are compared without it."""
    publish(tmp_path, "Llama")
    source = read_published(tmp_path)
    options = ConvertOptions(to="run")
    found = convert_family(source, tmp_path, options, {"model.encoding": "alibi"})
    assert found.difference < 1e-5
    assert [*found.task.model.encoding] == ["alibi"]


def test_tensors_start_at_random_for_transformers_only_where_zoo_refuses(tmp_path):
    weights = publish(tmp_path, "Qwen3")
    name = "model.layers.1.self_attn.q_norm.weight"
    write(tmp_path, {key: one for key, one in weights.items() if key != name})
    with pytest.raises(CheckpointError, match=f"missing: {name}"):
        convert(tmp_path)


RULES = {
    "linear": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 16},
    "default": {},
}


@torch.no_grad()
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", mark_others(WITHOUT, OFTEN))
def test_an_older_name_of_a_rule_means_what_transformers_reads(tmp_path, name):
    """Equal, or refused by name: some families read only rope_type of rope_scaling."""
    publish(tmp_path, name)
    change_config(tmp_path, "rope_parameters", rope_theta=300.0)
    outcomes = {}
    for rule, entries in RULES.items():
        for key in ("rope_type", "type"):
            change_config(tmp_path, rope_scaling={key: rule, **entries})
            try:
                model = convert(tmp_path).task.model.eval()
            except CheckpointError as error:
                outcomes[rule, key] = str(error)
                continue
            load = transformers.AutoModelForCausalLM.from_pretrained
            try:
                other = load(Path(tmp_path)).eval()
            except Exception:
                continue  # Phi-3 has no such rule
            torch.testing.assert_close(model(TOKENS), other(TOKENS).logits, **CLOSE)
            outcomes[rule, key] = "equal"
    assert outcomes["default", "type"] == "equal"
    if name != "Phi3":
        assert outcomes["linear", "rope_type"] == "equal"
        refused = "type=linear and rope_type=default, of which transformers reads rope_type"
        expected = refused if name in ("Gemma3", "Olmo3") else "equal"
        assert expected in outcomes["linear", "type"]
