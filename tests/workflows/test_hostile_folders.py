"""Folders and files of strangers, changed at random: refused with exit code 5 and by name, or still of use.

ZOO_HOSTILE=30 tries 30 of each kind and each way to change them.
"""

import json
import os
import random
import resource
import shutil
from pathlib import Path

import pytest
import torch
from tiny import language
from untrained import write_checkpoint

import zoo
from zoo.data.corpus.tokenizer import train_bpe
from zoo.errors import CheckpointError
from zoo.run import checkpoint

transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")
gguf = pytest.importorskip("gguf")

COUNT = int(os.environ.get("ZOO_HOSTILE", "1"))
GIGABYTE = 2**30
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
TEXT = {**SIZES, "vocab_size": 300, "max_position_embeddings": 32}
PIXELS = {**SIZES, "image_size": 16, "patch_size": 8}
GPT2 = {"vocab_size": 300, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
PUBLISHED = {
    "llama": ("LlamaForCausalLM", TEXT),
    "qwen2": ("Qwen2ForCausalLM", {**TEXT, "num_key_value_heads": 1}),
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "bert": ("BertModel", TEXT),
    "vit": ("ViTForImageClassification", PIXELS),
    "dinov3": ("DINOv3ViTModel", PIXELS),
}
VALUES = (
    None,
    True,
    -1,
    0,
    7,
    10**9,
    2**60,
    10**400,
    0.5,
    float("nan"),
    float("inf"),
    "",
    "x" * 1000,
    "\x1b]0;owned\x07",
    "os.system",
    [],
    {},
    [1] * 9,
    {"a": [None]},
)


def build_model(cls, config):
    torch.manual_seed(0)
    return getattr(transformers, cls)(
        getattr(transformers, cls).config_class(**config, pad_token_id=0)
    ).eval()


def write_gguf(path):
    """A Llama as GGUF, with a tokenizer."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(32)
    writer.add_embedding_length(16)
    writer.add_block_count(2)
    writer.add_feed_forward_length(24)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    content = json.loads(train_bpe(["a row of boats " * 9], 270).json)["model"]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([*content["vocab"]])
    writer.add_token_types([1] * len(content["vocab"]))
    writer.add_token_merges([" ".join(pair) for pair in content["merges"]])
    names = {"norm1": "attn_norm", "norm2": "ffn_norm"}
    shapes = {**dict.fromkeys(names.values(), (16,)), "ffn_down": (16, 24)}
    shapes |= dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (16, 16))
    shapes |= dict.fromkeys(("ffn_gate", "ffn_up"), (24, 16))
    size = len(content["vocab"])
    tensors = {"token_embd": (size, 16), "output": (size, 16), "output_norm": (16,)}
    tensors |= {f"blk.{n}.{name}": shape for n in range(2) for name, shape in shapes.items()}
    for name, shape in tensors.items():
        writer.add_tensor(f"{name}.weight", torch.randn(shape).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """One folder of each kind, as its program writes it."""
    root = tmp_path_factory.mktemp("hostile")
    tokenizer = train_bpe(["a row of boats " * 9], 300).json
    for name, (cls, config) in PUBLISHED.items():
        build_model(cls, config).save_pretrained(root / name)
        if "vocab_size" in config:
            (root / name / "tokenizer.json").write_text(tokenizer)
    equipped = build_model(*PUBLISHED["llama"])
    zoo.equip(equipped, ["fox", "rope"])
    zoo.save(equipped, root / "equipped")
    write_checkpoint(root / "run", "lm_rope", language(root / "text.txt"))
    zoo.export(root / "run", root / "exported", to="hf")
    zoo.export(root / "run", root / "safe", to="safetensors")
    (root / "gguf").mkdir()
    write_gguf(root / "gguf" / "model.gguf")
    names = ("cls_token", "patch_embed.proj.weight", "patch_embed.proj.bias", "norm.weight")
    weights = {name: torch.randn(1, 1, 64) for name in names[:1]}
    weights |= {names[1]: torch.randn(64, 3, 8, 8), names[2]: torch.randn(64)}
    weights |= {f"norm.{kind}": torch.randn(64) for kind in ("weight", "bias")}
    weights |= {"head.weight": torch.randn(5, 64), "head.bias": torch.randn(5)}
    start = "blocks.0."
    shapes = {"attn.qkv": (192, 64), "attn.proj": (64, 64), "mlp.fc1": (128, 64)}
    shapes |= {"mlp.fc2": (64, 128)}
    for name, shape in shapes.items():
        weights[f"{start}{name}.weight"] = torch.randn(shape)
        weights[f"{start}{name}.bias"] = torch.randn(shape[0])
    for name in ("norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias", "gamma_1", "gamma_2"):
        weights[start + name] = torch.randn(64)
    (root / "rope_vit").mkdir()
    torch.save({"model": weights}, root / "rope_vit" / "model.pth")
    return root


def list_places(tree):
    """All places in a tree of JSON, each as the container and the key."""
    places = []
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        places.append((tree, key))
        if isinstance(value, dict | list):
            places += list_places(value)
    return places


def change_tree(tree, draw):
    """Replace or remove something in JSON; sizes are chosen as often as all other entries."""
    places = list_places(tree)
    sizes = [place for place in places if type(place[0][place[1]]) is int]
    container, key = draw.choice(draw.choice([places, sizes or places]))
    if isinstance(container, dict) and draw.random() < 0.15:
        del container[key]
        return
    container[key] = draw.choice(VALUES)


def change_json(path, draw):
    if draw.random() < 0.2:
        texts = ("", "null", "[]", "7", '"x"', "{}", '{"model_type": "llama"}', "[" * 100_000, "\0")
        path.write_text(draw.choice(texts))
        return
    tree = json.loads(path.read_text())
    change_tree(tree, draw)
    path.write_text(json.dumps(tree))


def change_bytes(path, draw):
    """Cut a file, or write numbers over a part of it, more often at its start."""
    content = bytearray(path.read_bytes())
    at = int(len(content) * draw.random() ** 4)
    if draw.random() < 0.3:
        content = content[:at]
    else:
        size = draw.choice((1, 4, 8))
        number = draw.choice((0, 2**60, 2**31, 2**64 - 1, draw.getrandbits(64)))
        content[at : at + size] = (number % 2 ** (8 * size)).to_bytes(size, "little")
    path.write_bytes(content)


def change_file(path, draw):
    """Remove a file, or put a folder in its place."""
    path.unlink()
    if draw.random() < 0.5:
        path.mkdir()


def change_weights(weights, draw):
    """Change the type, the numbers, the shape or the name of a tensor."""
    name = draw.choice(sorted(weights))
    one = weights[name]
    kind = draw.randrange(8)
    if kind < 2 and one.numel() and one.is_floating_point():
        one = one.clone()
        one.view(-1)[draw.randrange(one.numel())] = (float("nan"), float("inf"))[kind]
        weights[name] = one
    elif kind <= 2:
        weights[name] = (one * 100).to(draw.choice((torch.int8, torch.int64, torch.bool)))
    elif kind == 3:
        weights[name] = draw.choice((one[..., :1], one[None], one.flatten(), one[:0]))
    elif kind == 4:
        del weights[name]
    elif kind == 5:
        weights[name.replace("0", "1000000000") + "x"] = one
    elif kind == 6:
        weights["blocks.1000000000.attn.qkv.weight"] = one
    else:
        weights[draw.choice(sorted(weights))] = one
    return {name: one.clone().contiguous() for name, one in weights.items()}


def change_safetensors(path, draw):
    weights = change_weights(dict(safetensors.load_file(path)), draw)
    safetensors.save_file(weights, path, metadata={"format": "pt"})


def change_checkpoint(path, draw):
    """Change what a checkpoint says or has; its seal is that of the changed content."""
    is_safe = path.suffix == ".safetensors"
    content = checkpoint.read(path)
    metadata, weights = content["zoo"], dict(content["state_dict"])
    if draw.random() < 0.7:
        change_tree(draw.choice((metadata, metadata["recipe"]["model"], metadata["samples"])), draw)
    else:
        weights = change_weights(weights, draw)
    if not is_safe and draw.random() < 0.2:
        name = draw.choice(sorted(weights))
        weights[name] = weights[name].view(-1)[:1].expand(10**12)
    if is_safe:
        checkpoint.write_safetensors(weights, metadata, path)
        return
    packed = checkpoint.serialise({**content, "zoo": metadata, "state_dict": weights})
    checkpoint.write_sealed(packed, path)


def change_pickle(path, draw):
    weights = change_weights(torch.load(path)["model"], draw)
    if draw.random() < 0.3:
        name = draw.choice(sorted(weights))
        weights[name] = weights[name].view(-1)[:1].expand(10**12)
    torch.save({"model": draw.choice((weights, weights, list(weights), {"x": weights}))}, path)


FILES = {"tokenizer.json": change_json, "config.json": change_json}
CHANGES = {
    **{
        name: {**FILES, "model.safetensors": change_safetensors}
        for name in ("llama", "qwen2", "gpt2", "bert")
    },
    **{
        name: {"config.json": change_json, "model.safetensors": change_safetensors}
        for name in ("vit", "dinov3")
    },
    "exported": {**FILES, "model.safetensors": change_safetensors},
    "equipped": {
        "config.json": change_json,
        "generation_config.json": change_json,
        "equipped.safetensors": change_safetensors,
    },
    "run": {"checkpoints/best.ckpt": change_checkpoint},
    "safe": {"model.safetensors": change_checkpoint},
    "gguf": {"model.gguf": change_bytes},
    "rope_vit": {"model.pth": change_pickle},
}
"""The files of each kind that are read, and how each is changed as what it is."""
LOADED = ("equipped", "run", "safe")
SINGLE = {"rope_vit": "model.pth"}


def read(kind, folder):
    if kind in LOADED:
        zoo.load(folder)
    else:
        zoo.convert(folder / SINGLE.get(kind, ""), to=folder.parent / "converted")


def change_folder(kind, folder, draw):
    """Change one file of a folder; return how."""
    name = draw.choice([*CHANGES[kind]])
    change = draw.choice((CHANGES[kind][name],) * 5 + (change_bytes, change_bytes, change_file))
    change(folder / name, draw)
    return f"{change.__name__} of {name}"


@pytest.mark.parametrize("kind", CHANGES)
def test_hostile_folders_are_refused_by_name_or_of_use(kind, originals, tmp_path):
    read(kind, originals / kind)
    shutil.rmtree(originals / "converted", ignore_errors=True)
    # a runaway allocation fails here, in place of taking the memory of the machine
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    resource.setrlimit(resource.RLIMIT_AS, (used + 3 * GIGABYTE, limits[1]))
    refused, faults = 0, []
    try:
        for seed in range(COUNT * len(CHANGES[kind]) * 2):
            folder = tmp_path / f"{kind}-{seed}"
            shutil.copytree(originals / kind, folder)
            how = change_folder(kind, folder, random.Random(seed))
            try:
                read(kind, folder)
            except CheckpointError as error:
                refused += 1
                if str(folder) not in str(error) or "\x1b" in str(error):
                    faults.append(f"{seed}, {how}: does not name the file: {error}")
            except BaseException as error:
                faults.append(f"{seed}, {how}: {error!r:.300}")
            shutil.rmtree(folder)
            shutil.rmtree(tmp_path / "converted", ignore_errors=True)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert not faults, "\n".join(faults)
    assert refused
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert (after - before) * 1024 < GIGABYTE
