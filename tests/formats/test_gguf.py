"""The rotary fields of a GGUF file, each read or refused by name."""

import math

import pytest
import torch

import zoo
from zoo.api.tools import convert
from zoo.errors import CheckpointError, OptionError
from zoo.formats.gguf import read_gguf_rope
from zoo.integrations.rope_parameters import read_rope_parameters

SETTINGS = {"max_position_embeddings": 256, "hidden_size": 32, "num_attention_heads": 2}
DIVISORS = {"short": [1.0] * 8, "long": [1.0 + t for t in range(8)]}


def read(divisors=None, **fields):
    """Return the rule that a file with these fields below llama.rope gives."""
    given = {f"llama.rope.{key.replace('__', '.')}": value for key, value in fields.items()}
    entries = read_gguf_rope(given, divisors or {}, SETTINGS)
    return read_rope_parameters(entries, SETTINGS["max_position_embeddings"])


def test_plain_fields_are_no_rule():
    assert read() == {"base": 10000.0}
    assert read(freq_base=500.0, dimension_count=16, scaling__type="none") == {"base": 500.0}


def test_a_factor_alone_is_linear():
    expected = {"base": 10000.0, "scaling": {"rule": "linear", "factor": 4.0}}
    assert read(scaling__factor=4.0) == expected
    assert read(scaling__factor=4.0, scaling__type="linear", scaling__finetuned=True) == expected


def test_yarn_has_its_fields():
    found = read(
        scaling__type="yarn",
        scaling__factor=4.0,
        scaling__original_context_length=64,
        scaling__yarn_beta_fast=16.0,
        scaling__yarn_beta_slow=2.0,
        scaling__attn_factor=0.5,
    )["scaling"]
    assert found.pop("attention_factor") == pytest.approx(0.5 * (0.1 * math.log(4) + 1))
    expected = {"factor": 4.0, "original": 64, "beta_fast": 16.0, "beta_slow": 2.0}
    assert found == {"rule": "yarn", **expected}


def test_divisors_are_those_of_longrope():
    found = read(DIVISORS, scaling__original_context_length=64, scaling__attn_factor=1.2)["scaling"]
    assert (found["short_factor"], found["long_factor"]) == tuple(DIVISORS.values())
    assert (found["rule"], found["original"], found["attention_factor"]) == ("longrope", 64, 1.2)


def test_divisors_of_llama3_give_its_frequencies():
    rule = {"rule": "llama3", "factor": 8.0, "original": 64}
    like = torch.zeros((), dtype=torch.float64)
    dims = zoo.Dims(32, 2, length=256)
    llama3, plain = (
        zoo.encoding("rope", dims, scaling=one).wave_vectors(like) for one in (rule, None)
    )
    options = read({"all": (plain / llama3).flatten().tolist()})
    rope = zoo.encoding("rope", dims, **options)
    torch.testing.assert_close(rope.wave_vectors(like), llama3)
    assert rope.resolved.sharpening == 1
    assert rope.text_length == 256


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"dimension_count": 8}, "dimension_count is 8, but heads have 16 channels"),
        ({"scaling__type": "su"}, "scaling.type is su; known: none, linear, yarn, longrope"),
        (
            {"scaling__type": "yarn", "scaling__yarn_log_multiplier": 0.1},
            "log_multiplier=0.1 is not",
        ),
        ({"scaling__type": "linear", "scaling__alpha": 2.0}, "scaling.alpha=2.0 is not read"),
        ({"dimension_sections": [4, 4]}, "dimension_sections=.* is not read"),
        ({"scaling__type": "none", "scaling__factor": 2.0}, "scaling.factor=2.0 is not read"),
    ],
    ids=str,
)
def test_a_field_that_is_not_read_is_named(fields, part):
    with pytest.raises(OptionError, match=part):
        read(**fields)


def write_file(path, **scaling):
    """Write a model of one layer and width 16, whose rotary fields are given."""
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in {
        "context_length": 64,
        "embedding_length": 16,
        "feed_forward_length": 24,
        "block_count": 1,
        "head_count": 2,
        "layer_norm_rms_eps": 1e-6,
    }.items():
        getattr(writer, f"add_{name}")(value)
    writer.add_token_list([f"{token}" for token in range(20)])
    for name, value in scaling.items():
        getattr(writer, f"add_rope_scaling_{name}")(value)
    shapes = {"token_embd": (20, 16), "output_norm": (16,), "rope_freqs": (4,)}
    square = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (16, 16))
    block = {**square, "attn_norm": (16,), "ffn_norm": (16,), "ffn_down": (16, 24)}
    block |= dict.fromkeys(("ffn_gate", "ffn_up"), (24, 16))
    for name, shape in {**shapes, **{f"blk.0.{key}": one for key, one in block.items()}}.items():
        writer.add_tensor(f"{name}.weight", torch.rand(shape).add(1).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_file_with_divisors_becomes_a_run(tmp_path):
    write_file(tmp_path / "it.gguf")
    task = zoo.load(convert(tmp_path / "it.gguf", to=tmp_path / "run").run)
    scaling = task.model.encoding["rope"].scaling
    assert scaling.rule == "longrope"
    assert all(1 < one < 2 for one in scaling.short_factor)
    assert scaling.short_factor == scaling.long_factor
    assert task.model(torch.arange(20)[None]).isfinite().all()


def test_a_file_with_an_unknown_field_is_refused(tmp_path):
    write_file(tmp_path / "it.gguf", yarn_log_mul=0.1)
    with pytest.raises(CheckpointError, match="log_multiplier"):
        convert(tmp_path / "it.gguf", to=tmp_path / "run")


def test_a_kind_of_another_program_is_printed_safely(tmp_path):
    gguf = pytest.importorskip("gguf")
    write_file(tmp_path / "it.gguf", type=gguf.RopeScalingType.YARN)
    content = (tmp_path / "it.gguf").read_bytes()
    (tmp_path / "it.gguf").write_bytes(content.replace(b"yarn", b"\x1b[2J"))
    with pytest.raises(CheckpointError, match=r"scaling.type is \\x1b\[2J; known"):
        convert(tmp_path / "it.gguf", to=tmp_path / "run")
