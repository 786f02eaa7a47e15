"""GGUF files become runs, or are refused by name."""

import pytest
import torch

import zoo
from zoo.api.tools import convert
from zoo.errors import CheckpointError
from zoo.formats.gguf import build_gguf_tokenizer, read_gguf


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


def test_a_file_of_another_architecture_or_cut_short_is_refused(tmp_path):
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "it.gguf"
    known = "gemma2, gemma3, llama, olmo2, phi3, qwen2, qwen3, smollm3"
    for name, fields, part in [
        ("mamba", {}, f"of architecture 'mamba'; GGUF files are read of cohere2, {known}"),
        ("lfm2", {}, "of architecture 'lfm2'; GGUF files are read of"),
        ("qwen3moe", {"qwen3moe.expert_count": 4}, "'qwen3moe' is a mixture of experts"),
        ("llama", {"split.count": 3}, "one of 3 files that are one model; merge them with"),
        ("llama", {}, "llama.embedding_length is missing"),
    ]:
        writer = gguf.GGUFWriter(path, name)
        for key, value in fields.items():
            writer.add_uint32(key, value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        with pytest.raises(CheckpointError, match=rf"it\.gguf: .*{part}"):
            read_gguf(path)

    write_file(path)
    content = path.read_bytes()
    for share in (0.1, 0.5, 0.9):
        path.write_bytes(content[: int(share * len(content))])
        with pytest.raises(CheckpointError, match=r"it\.gguf: unreadable as GGUF"):
            read_gguf(path)


def test_a_kind_of_another_program_is_printed_safely(tmp_path):
    gguf = pytest.importorskip("gguf")
    write_file(tmp_path / "it.gguf", type=gguf.RopeScalingType.YARN)
    content = (tmp_path / "it.gguf").read_bytes()
    (tmp_path / "it.gguf").write_bytes(content.replace(b"yarn", b"\x1b[2J"))
    with pytest.raises(CheckpointError, match=r"scaling.type is \\x1b\[2J; known"):
        convert(tmp_path / "it.gguf", to=tmp_path / "run")


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({}, "no tokenizer; the model reads only token ids"),
        ({"model": "llama", "pre": "default"}, "the tokenizer (llama, default) of the file is not"),
        ({"model": "gpt2", "pre": "qwen2"}, "the tokenizer (gpt2, qwen2) of the file is not known"),
    ],
)
def test_a_tokenizer_that_is_not_known_is_logged(caplog, fields, part):
    given = {f"tokenizer.ggml.{key}": value for key, value in fields.items()}
    with caplog.at_level("INFO", logger="zoo"):
        assert build_gguf_tokenizer(given) is None
    assert part in caplog.text
