"""GGUF files of each architecture compute what transformers computes, or are refused by name."""

import math

import numpy as np
import pytest
import torch

import zoo
from zoo.errors import CheckpointError
from zoo.formats.convert import ConvertOptions, convert_family
from zoo.formats.gguf import read_gguf
from zoo.formats.gguf_architectures import ARCHITECTURES, Fields, describe_gguf, read_gguf_rope
from zoo.integrations.rope_parameters import read_rope_parameters

transformers = pytest.importorskip("transformers")
gguf = pytest.importorskip("gguf")

CLOSE = {"atol": 1e-5, "rtol": 1e-5}
TOKENS = 50
SIZES = {
    "vocab_size": TOKENS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
WINDOW = {"sliding_window": 6}
BASE = {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "attention_factor": 1.2,
}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 500.0,
    "original_max_position_embeddings": 40,
    "short_factor": [1.0, 1.5, 2.0, 4.0],
    "long_factor": [1.0, 3.0, 5.0, 9.0],
    "attention_factor": 1.1,
}
KINDS = ("full_attention", "sliding_attention")
FULL = {"rope_type": "linear", "rope_theta": 900.0, "factor": 8.0}
PLAIN = {"rope_type": "default", "rope_theta": 500.0}
FILES = {
    "llama": {**BASE, "head_dim": 12, "attention_bias": True},
    "qwen2": BASE,
    "qwen3": {**BASE, "head_dim": 12},
    "smollm3": {**BASE, "num_hidden_layers": 4},
    "phi3": {**BASE, **WINDOW},
    "phi3 of a part": {"rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5}},
    "phi3 of longrope": {"rope_parameters": LONG, "original_max_position_embeddings": 40},
    "olmo2": {"rope_parameters": YARN, "tie_word_embeddings": True},
    "olmo3": {
        **WINDOW,
        "num_hidden_layers": 4,
        "rope_parameters": dict(zip(KINDS, (YARN, PLAIN), strict=True)),
    },
    "gemma2": {**BASE, **WINDOW, "head_dim": 12, "query_pre_attn_scalar": 12},
    "gemma3": {
        **WINDOW,
        "num_hidden_layers": 6,
        "head_dim": 12,
        "query_pre_attn_scalar": 12,
        "final_logit_softcapping": 3.0,
        "rope_parameters": dict(zip(KINDS, (FULL, PLAIN), strict=True)),
    },
    "cohere2": {**BASE, **WINDOW, "num_hidden_layers": 4, "logit_scale": 0.3},
}
"""Models whose files say all of them: what an architecture fixes is as it fixes it."""
CLASSES = {"smollm3": "SmolLM3"}
LOADED = {
    "llama": {"attention_bias": True},
    "qwen2": {},
    "qwen3": {"head_dim": 12},
    "phi3": WINDOW,
    "gemma2": {"query_pre_attn_scalar": 12},
    "gemma3": {
        key: FILES["gemma3"][key]
        for key in ("query_pre_attn_scalar", "final_logit_softcapping", "rope_parameters")
    },
}
"""Files that transformers reads, and the entries of its configuration that it does not."""


def build_model(name, **changes):
    """Return a tiny model of transformers with random weights."""
    cls = CLASSES.get(name, name.split()[0].capitalize())
    config = getattr(transformers, f"{cls}TextConfig" if cls == "Gemma3" else f"{cls}Config")
    torch.manual_seed(0)
    entries = {**SIZES, **FILES[name], **changes}
    model = getattr(transformers, f"{cls}ForCausalLM")(config(**entries)).eval()
    for parameter in model.parameters():
        parameter.data.normal_(std=0.3)
    return model


def write_rope(writer, rope, length):
    """Write the rotary fields and tensors of one rotation, as llama.cpp does."""
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_attn_factor(rope["attention_factor"])
    if rope["rope_type"] == "longrope":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_attn_factors(rope["attention_factor"])
        for kind in ("short", "long"):
            factors = np.array(rope[f"{kind}_factor"], dtype=np.float32)
            writer.add_tensor(f"rope_factors_{kind}.weight", factors)


def permute(weight, heads):
    """Put rows that rotate together side by side, as llama.cpp does."""
    return weight.reshape(heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def write_file(path, model, architecture, quantises=False):
    """Write a model as llama.cpp's converter of its architecture does."""
    config, writer = model.config, gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_token_list([f"{token}" for token in range(config.vocab_size)])
    writer.add_pad_token_id(0)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    if architecture == "cohere2":
        writer.add_layer_norm_eps(config.layer_norm_eps)
        writer.add_logit_scale(config.logit_scale)
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    else:
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if architecture in ("llama", "smollm3", "cohere2"):
        heads = config.hidden_size // config.num_attention_heads
        writer.add_rope_dimension_count(getattr(config, "head_dim", heads))
    rope = config.rope_parameters
    writes_window = architecture in ("gemma2", "gemma3", "cohere2", "olmo2", "phi3")
    if writes_window and hasattr(config, "sliding_window"):
        writer.add_sliding_window(config.sliding_window or 0)
    if KINDS[0] in rope:
        writer.add_rope_freq_base_swa(rope[KINDS[1]]["rope_theta"])
        rope = rope[KINDS[0]]
    if config.model_type == "olmo3":
        writer.add_sliding_window_pattern([kind == KINDS[1] for kind in config.layer_types])
    write_rope(writer, rope, config.max_position_embeddings)
    if architecture == "phi3":
        width = config.hidden_size // config.num_attention_heads
        part = rope.get("partial_rotary_factor") or 1.0
        writer.add_rope_dimension_count(int(part * width))
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if getattr(config, key, None):
            getattr(writer, f"add_{key}")(getattr(config, key))
    (kind,) = (one for one, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if architecture in ("llama", "smollm3") and (".q_proj." in name or ".k_proj." in name):
            is_query = ".q_proj." in name
            heads = config.num_attention_heads if is_query else config.num_key_value_heads
            weight = permute(weight, heads)
        if architecture.startswith("gemma") and name.endswith("norm.weight"):
            weight = weight + 1
        own, numbers, form = names.get_name(name, (".weight", ".bias")), weight.numpy(), None
        if quantises and weight.dim() == 2 and weight.shape[1] % 32 == 0:
            form = gguf.GGMLQuantizationType.Q8_0
            numbers = gguf.quantize(numbers, form)
        writer.add_tensor(own, numbers, raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def name_architecture(name):
    """Return the architecture of a file: OLMo 3 is an olmo2 with windows."""
    return {"olmo3": "olmo2"}.get(name, name.split()[0])


def read_file(path):
    """Return the model of zoo that a file becomes."""
    options = ConvertOptions(to=str(path.parent / "run"))
    _, task, *_ = convert_family(read_gguf(path), path, options, {})
    return task.model


def load_file(path, **entries):
    """Return the model of transformers that a file becomes."""
    load = transformers.AutoModelForCausalLM.from_pretrained
    return load(path.parent, gguf_file=path.name, dtype=torch.float32, **entries)


@torch.no_grad()
@pytest.mark.parametrize("name", FILES)
def test_a_file_computes_the_same(tmp_path, name):
    """Past windows and original length too."""
    model, path = build_model(name), tmp_path / "it.gguf"
    write_file(path, model, name_architecture(name))
    tokens = torch.randint(1, TOKENS, (2, 40))
    right = model(tokens).logits
    torch.testing.assert_close(read_file(path)(tokens), right, **CLOSE)
    if name in LOADED:
        found = load_file(path, **LOADED[name])(tokens).logits
        torch.testing.assert_close(found, right, **CLOSE)


@torch.no_grad()
def test_quantised_weights_are_those_that_transformers_reads(tmp_path):
    model, path = build_model("llama"), tmp_path / "it.gguf"
    write_file(path, model, "llama", quantises=True)
    tokens = torch.randint(1, TOKENS, (2, 40))
    right = load_file(path, **LOADED["llama"])(tokens).logits
    torch.testing.assert_close(read_file(path)(tokens), right, **CLOSE)
    assert not torch.allclose(model(tokens).logits, right, **CLOSE)


def test_each_architecture_has_a_file():
    assert {name_architecture(name) for name in FILES} == {*ARCHITECTURES}


def describe(architecture, tensors=100, divisors=None, **changes):
    """Return the entries that fields give; `__` stands for a dot, None leaves a field out."""
    eps = "layer_norm_epsilon" if architecture == "cohere2" else "layer_norm_rms_epsilon"
    fields = {
        "embedding_length": 32,
        "feed_forward_length": 48,
        "block_count": 8,
        "attention.head_count": 4,
        "context_length": 64,
        f"attention.{eps}": 1e-6,
        "vocab_size": 50,
        **{name.replace("__", "."): value for name, value in changes.items()},
    }
    given = {f"{architecture}.{name}": one for name, one in fields.items() if one is not None}
    given["general.architecture"] = architecture
    return describe_gguf(given, divisors or {}, tensors)


@pytest.mark.parametrize(
    ("architecture", "fields", "full"),
    [
        ("gemma2", {}, [1, 3, 5, 7]),
        ("gemma3", {"attention__sliding_window": 6}, [5]),
        ("gemma3", {}, [*range(8)]),
        (
            "gemma3",
            {"attention__sliding_window": 6, "attention__sliding_window_pattern": 3},
            [2, 5],
        ),
        ("olmo2", {"attention__sliding_window": 6}, [3, 7]),
        (
            "cohere2",
            {
                "attention__sliding_window": 6,
                "attention__sliding_window_pattern": [True] * 7 + [False],
                "logit_scale": 1.0,
            },
            [7],
        ),
    ],
)
def test_layers_without_a_window_are_those_of_the_file_or_of_the_definition(
    architecture, fields, full
):
    kinds = describe(architecture, **fields)["layer_types"]
    assert [number for number, kind in enumerate(kinds) if kind == KINDS[0]] == full


@pytest.mark.parametrize(("architecture", "depth"), [("gemma2", 46), ("gemma3", 62)])
def test_the_largest_gemma_scales_queries_by_its_width(architecture, depth):
    fields = {"attention__key_length": 12, "attention__value_length": 12}
    assert describe(architecture, **fields)["query_pre_attn_scalar"] == 12
    fields["block_count"] = depth
    assert describe(architecture, **fields)["query_pre_attn_scalar"] == 8


@pytest.mark.parametrize(
    ("architecture", "changes", "part"),
    [
        ("qwen2", {"attention__sliding_window": 8}, "qwen2.attention.sliding_window=8 is not read"),
        ("gemma2", {"rope__freq_base_swa": 5.0}, "gemma2.rope.freq_base_swa=5.0 is not read"),
        ("smollm3", {"nope": 1, "again": 2}, "smollm3.again=2, smollm3.nope=1 is not read"),
        ("qwen3", {"context_length": None}, "qwen3.context_length is missing"),
        ("cohere2", {"attention__sliding_window": 4}, "cohere2.logit_scale is missing"),
        ("cohere2", {"logit_scale": 1.0}, "cohere2.attention.sliding_window is missing"),
        ("phi3", {"vocab_size": None}, "phi3.vocab_size is missing"),
        ("llama", {"block_count": 2**40}, "block_count is 1,099,511,627,776, but the file has 100"),
        ("llama", {"block_count": True}, "llama.block_count is True, expected an integer"),
        ("llama", {"attention__head_count_kv": [2, 4]}, "head_count_kv is .2, 4., expected an int"),
        ("llama", {"attention__head_count": 0}, "llama.attention.head_count is 0"),
        ("llama", {"expert_count": 8}, "llama.expert_count is 8: a mixture of experts"),
        ("llama", {"rope__dimension_count": 4}, "dimension_count is 4, but heads have 8 channels"),
        ("llama", {"tensor_data_layout": "other"}, "llama.tensor_data_layout is not Meta AI"),
        ("qwen2", {"tensor_data_layout": "other"}, "tensor_data_layout='other' is not read"),
        ("qwen3", {"attention__value_length": 4}, "value_length is 4, but keys have 8"),
    ],
)
def test_a_field_that_cannot_be_is_refused_by_name(architecture, changes, part):
    with pytest.raises(CheckpointError, match=part):
        describe(architecture, **changes)


def test_fields_that_say_what_is_so_anyway_change_nothing():
    fields = {"expert_count": 0, "attention__causal": True, "rope__scaling__finetuned": True}
    layout = "Meta AI original pth"
    assert describe("llama", **fields, tensor_data_layout=layout) == describe("llama")


def test_writers_of_olmo3_put_the_factor_of_attention_in_either_field():
    fields = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0}
    (found, other) = (
        describe("olmo2", **fields, **{f"rope__scaling__{name}": 1.2})["rope_parameters"]
        for name in ("attn_factor", "yarn_attn_factor")
    )
    assert found == other
    assert found["attention_factor"] == 1.2


ROPE_SIZES = {"max_position_embeddings": 256, "head_dim": 16}
DIVISORS = {"short": [1.0] * 8, "long": [1.0 + t for t in range(8)]}


def read_rope(divisors=None, **fields):
    """Return the rule that a file with these fields below llama.rope gives."""
    given = {f"llama.rope.{key.replace('__', '.')}": value for key, value in fields.items()}
    taken = Fields(given, "llama")
    entries = read_gguf_rope(taken, divisors or {}, ROPE_SIZES)
    taken.check_taken()
    return read_rope_parameters(entries, ROPE_SIZES["max_position_embeddings"])


def test_plain_fields_are_no_rule():
    assert read_rope() == {"base": 10000.0}
    assert read_rope(freq_base=500.0, dimension_count=16, scaling__type="none") == {"base": 500.0}


def test_a_factor_alone_is_linear():
    expected = {"base": 10000.0, "scaling": {"rule": "linear", "factor": 4.0}}
    assert read_rope(scaling__factor=4.0) == expected
    assert (
        read_rope(scaling__factor=4.0, scaling__type="linear", scaling__finetuned=True) == expected
    )


def test_yarn_has_its_fields():
    found = read_rope(
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
    found = read_rope(DIVISORS, scaling__original_context_length=64, scaling__attn_factor=1.2)[
        "scaling"
    ]
    assert (found["short_factor"], found["long_factor"]) == tuple(DIVISORS.values())
    assert (found["rule"], found["original"], found["attention_factor"]) == ("longrope", 64, 1.2)


def test_divisors_of_llama3_give_its_frequencies():
    rule = {"rule": "llama3", "factor": 8.0, "original": 64}
    like = torch.zeros((), dtype=torch.float64)
    dims = zoo.Dims(32, 2, length=256)
    llama3, plain = (
        zoo.encoding("rope", dims, scaling=one).wave_vectors(like) for one in (rule, None)
    )
    options = read_rope({"all": (plain / llama3).flatten().tolist()})
    rope = zoo.encoding("rope", dims, **options)
    torch.testing.assert_close(rope.wave_vectors(like), llama3)
    assert rope.resolved.sharpening == 1
    assert rope.text_length == 256


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"scaling__type": "su"}, "scaling.type is su; known are none, linear, yarn, longrope"),
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
def test_a_rotary_field_that_is_not_read_is_named(fields, part):
    with pytest.raises(CheckpointError, match=part):
        read_rope(**fields)


def test_a_fault_of_a_file_names_its_fields(tmp_path):
    model, path = build_model("olmo3"), tmp_path / "it.gguf"
    model.config.layer_types = model.config.layer_types[:3]
    write_file(path, model, "olmo2")
    with pytest.raises(CheckpointError) as caught:
        read_file(path)
    field = "olmo2.attention.sliding_window_pattern"
    assert str(caught.value) == f"{path}: metadata: {field} names 3 layers of 4"
