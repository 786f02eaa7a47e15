"""Convert published weights to a run, whose recipe is written along."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from zoo import config
from zoo.config import Recipe
from zoo.config.overrides import Overrides, join_overrides
from zoo.data.corpus.tokenizer import CorpusVocabulary, Subwords, TokenCount
from zoo.data.spec import DataSpec
from zoo.errors import CheckpointError
from zoo.formats.export import new_folder
from zoo.formats.families import BertFamily, GPT2Family, LlamaFamily, Pool, PublishedFamily
from zoo.formats.image_families import DINOv3Family, RoPEViTFamily, ViTFamily
from zoo.formats.native import split_halves
from zoo.packages import explain_imports
from zoo.run import atomic_io, checkpoint, run_dir
from zoo.run.build import build_task
from zoo.run.load import read_recipe, restore_content
from zoo.run.preflight import build_experiment
from zoo.tasks.base import Task
from zoo.utils import escape_text

log = logging.getLogger("zoo")

MAX_LISTED = 20
"""Issues of one kind that a message lists."""
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
TOKENIZER = "tokenizer.json"
EXPORTED = "zoo"  # model_type of what `zoo export to=hf` wrote
CONTROL_TOKEN = 3  # its type in a GGUF file
FAMILIES: Mapping[str, type[PublishedFamily]] = MappingProxyType(
    {
        **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), LlamaFamily),
        "gpt2": GPT2Family,
        "bert": BertFamily,
        "vit": ViTFamily,
        "dinov3_vit": DINOv3Family,
        "": RoPEViTFamily,
    }
)
"""The families by `model_type` of config.json; weights without a configuration are RoPE-ViT."""
GGUF_LAYERS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
"""Names of transformers for those of a GGUF file."""


@dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    """Where published weights are converted to."""

    to: str | None = None
    """Run directory to write; null: a new one, runs/NAME/TIME-HASH."""


@dataclass(frozen=True)
class Published:
    """What a folder or a file of published weights holds.

    Attributes:
        name: A name for the recipe.
        config: config.json; empty where there is none.
        weights: The tensors by name.
        tokenizer: tokenizer.json; None where there is none.
    """

    name: str
    config: Mapping[str, Any]
    weights: Mapping[str, Tensor]
    tokenizer: str | None = None


@dataclass(frozen=True, kw_only=True)
class ConvertResult:
    """The run that published weights became.

    Attributes:
        recipe: The name of its recipe.
        run: The run directory.
        checkpoint: The checkpoint in it.
        weights: The number of weights that were published.
        dropped: The names of those that a model of zoo has no use for.
    """

    recipe: str
    run: Path
    checkpoint: Path
    weights: int
    dropped: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        paths = {"run": str(self.run), "checkpoint": str(self.checkpoint)}
        return {**asdict(self), **paths, "dropped": [*self.dropped]}


def convert_weights(
    source: Path, options: ConvertOptions, overrides: Overrides = ()
) -> ConvertResult:
    """Write published weights as a run directory: recipe, environment and checkpoint.

    Args:
        source: A folder with config.json and safetensors, or a file: safetensors or GGUF, or
            weights of RoPE-ViT as `torch.save` wrote them.
        options: The run directory to write.
        overrides: Changes of the recipe.

    Raises:
        RecipeError: The recipe is wrong, or the run directory exists already.
        CheckpointError: The weights are unreadable, or not those of a model that zoo has.
    """
    published = read_published(source)
    dropped: list[str] = []
    if published.config.get("model_type") == EXPORTED:
        recipe, task = restore_exported(published, source, overrides)
        folder = _choose_folder(options, recipe)
    else:
        recipe, task, folder, dropped = convert_family(published, source, options, overrides)

    with new_folder(folder) as unfinished:
        run_dir.create(recipe, unfinished)
        if published.tokenizer is not None:
            (unfinished / TOKENIZER).write_text(published.tokenizer, encoding="utf-8")
        metadata = checkpoint.build_metadata(recipe, task.spec)
        content = {"zoo": metadata, "state_dict": task.state_dict()}
        target = unfinished / "checkpoints" / "best.ckpt"
        atomic_io.write_sealed(atomic_io.serialise(content), target)
    if options.to is None:
        run_dir.link_latest(folder)
    return ConvertResult(
        recipe=recipe.name,
        run=folder,
        checkpoint=folder / "checkpoints" / "best.ckpt",
        weights=len(published.weights),
        dropped=tuple(dropped),
    )


def _choose_folder(options: ConvertOptions, recipe: Recipe) -> Path:
    return Path(options.to) if options.to else run_dir.name_new(recipe)


def restore_exported(
    published: Published, source: Path, overrides: Overrides
) -> tuple[Recipe, Task]:
    """Restore a model that `zoo export to=hf` wrote and transformers may have trained further.

    Raises:
        CheckpointError: There is no recipe in config.json, or the weights are not those of it.
        RecipeError: An override is wrong.
    """
    metadata = published.config.get("zoo")
    content = {"zoo": metadata, "state_dict": dict(published.weights)}
    checkpoint.require_checkpoint(content, source)
    assert isinstance(metadata, dict)
    if published.tokenizer is not None:
        content["zoo"] = restore_vocabulary(metadata, published.tokenizer)
    recipe = read_recipe(content, source, overrides)
    _, task = restore_content(content, source, recipe)
    return recipe, task


def restore_vocabulary(metadata: dict[str, Any], tokenizer: str) -> dict[str, Any]:
    """Return metadata with the subwords of a tokenizer where they have the number of subwords.

    Tokens that were added behind the model's own, such as one that pads, are left out.
    """
    samples: Any = metadata.get("samples")
    stored = samples.get("vocabulary") if isinstance(samples, dict) else None
    if not isinstance(stored, dict) or stored.get("kind") != "count":
        return metadata
    try:
        settings, size = json.loads(tokenizer), int(stored["size"])
        added = [token for token in settings["added_tokens"] if token["id"] < size]
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{TOKENIZER}: not as transformers writes it: {error!r}") from None
    subwords = Subwords(json.dumps({**settings, "added_tokens": added}, ensure_ascii=False))
    return {**metadata, "samples": {**samples, "vocabulary": subwords.to_dict()}}


def convert_family(
    published: Published, source: Path, options: ConvertOptions, overrides: Overrides
) -> tuple[Recipe, Task, Path, list[str]]:
    """Build the recipe and the model of published weights of one of FAMILIES.

    Returns:
        The recipe, the task with the weights, the run directory to write, and the weights left out.

    Raises:
        CheckpointError: The weights are not those of a model that zoo has.
        RecipeError: An override is wrong.
    """
    pool = Pool(published.weights)
    try:
        family = build_family(published, pool)
        sections, spec = family.describe()
    except CheckpointError as error:
        raise CheckpointError(escape_text(f"{source}: {error}")) from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        problem = f"config.json: an entry is missing or wrong: {error!r}"
        raise CheckpointError(escape_text(f"{source}: {problem}")) from None

    recipe = build_recipe(published.name, sections, spec, overrides)
    folder = _choose_folder(options, recipe)
    if published.tokenizer is not None and recipe.data.options.get("tokens") == "subword":
        given = {"data.tokenizer": folder.absolute() / TOKENIZER}
        recipe = build_recipe(published.name, sections, spec, join_overrides(given, overrides))

    family.rename(recipe.model.options["heads"])
    dropped = pool.drop(family.dropped) if family.dropped else []
    issues = [f"missing: {name}" for name in pool.missing]
    issues += [f"unknown: {name} {list(weight.shape)}" for name, weight in pool.rest.items()]
    _refuse(source, "not the weights of its configuration", issues)
    task = build_task(recipe, spec)
    _load(source, task, pool.taken)
    for name in dropped:
        log.info("left out, a model of zoo has no such layer: %s", name)
    return recipe, task, folder, dropped


def build_family(published: Published, pool: Pool) -> PublishedFamily:
    """Return the family of weights. Raises CheckpointError if zoo has none of that kind."""
    kind = str(published.config.get("model_type", ""))
    if kind not in FAMILIES:
        known = ", ".join([*filter(None, FAMILIES), EXPORTED])
        raise CheckpointError(f"model_type {kind!r} is not known; known are {known}, and RoPE-ViT")
    vocabulary: CorpusVocabulary | None = None
    if published.tokenizer is not None:
        vocabulary = Subwords(published.tokenizer)
    elif "vocab_size" in published.config:
        # the model is built with their number
        vocabulary = TokenCount(published.config["vocab_size"])
    return FAMILIES[kind](published.config, pool, vocabulary)


def build_recipe(
    name: str, sections: Mapping[str, Any], spec: DataSpec, overrides: Overrides
) -> Recipe:
    """Return the recipe of a converted model, checked.

    Args:
        name: Its name.
        sections: The sections model, data and task.
        spec: What the model knows of its data.
        overrides: Changes of the user.

    Raises:
        RecipeError: An override is wrong.
    """
    base = {"extends": ["optim/adamw", "trainer/default"], "trainer": {"max_epochs": 1}}
    plain = {**base, **sections}
    with tempfile.TemporaryDirectory(prefix="zoo-") as folder:
        file = Path(folder) / f"{name}.yaml"
        # JSON is YAML too
        file.write_text(json.dumps(plain), encoding="utf-8")
        return build_experiment(config.load(file, overrides), spec).recipe


def _load(source: Path, task: Task, weights: Mapping[str, Tensor]) -> None:
    """Give a model its weights; those of a head that was not published stay as they are."""
    own = task.model.state_dict()
    issues = [
        f"{name}: {list(weight.shape)} in the file, {list(own[name].shape)} by the recipe"
        for name, weight in weights.items()
        if name in own and weight.shape != own[name].shape
    ]
    issues += [f"{name}: not in the recipe's model" for name in weights if name not in own]
    absent = [name for name in own if name not in weights]
    issues += [f"{name}: not in the file" for name in absent if not name.startswith("head.")]
    _refuse(source, "not the weights of the recipe", issues)
    if absent:
        log.info("there is no head for classes; it starts at 0")
    task.model.load_state_dict({**own, **weights})


def _refuse(source: Path, problem: str, issues: Sequence[str]) -> None:
    """Raise CheckpointError with all issues, if there are any."""
    rest = len(issues) - MAX_LISTED
    more = [f"and {rest} more"] if rest > 0 else []
    if issues:
        listed = map(escape_text, [f"{source}: {problem}", *issues[:MAX_LISTED], *more])
        raise CheckpointError("\n  ".join(listed))


def read_published(source: Path) -> Published:
    """Read a folder or a file of published weights, without running any code in it.

    Raises:
        CheckpointError: It is missing, unreadable, or holds no weights that are read.
    """
    if not os.path.lexists(source):
        raise CheckpointError(f"{source}: no such file or folder")
    if source.suffix == ".gguf":
        return read_gguf(source)
    if not source.is_dir():
        is_safe = source.suffix == ".safetensors"
        weights = _read_safetensors(source) if is_safe else _read_tensors(source)
        return Published(source.stem, {}, weights)

    files = sorted(source.glob("*.safetensors"))
    if not files:
        if ggufs := sorted(source.glob("*.gguf")):
            return read_gguf(ggufs[0])
        if any(path.suffix in PICKLES for path in source.iterdir()):
            problem = "its weights are pickled, which is not read; save them as safetensors"
            raise CheckpointError(f"{source}: {problem}")
        raise CheckpointError(f"{source}: no safetensors in it")
    weights = {}
    for file in files:
        weights |= _read_safetensors(file)
    tokenizer, found = source / TOKENIZER, source / "config.json"
    try:
        settings = json.loads(found.read_text(encoding="utf-8"))
        text = tokenizer.read_text(encoding="utf-8") if tokenizer.is_file() else None
    except OSError as error:
        problem = error.strerror or str(error)
        raise CheckpointError(f"{error.filename}: cannot be read, {problem}") from None
    except ValueError as error:
        raise CheckpointError(f"{found}: not JSON: {error}") from None
    if not isinstance(settings, dict):
        raise CheckpointError(f"{found}: not a mapping")
    return Published(source.resolve().name, settings, weights, text)


def _read_safetensors(file: Path) -> dict[str, Tensor]:
    with explain_imports():
        from safetensors.torch import load_file

    try:
        return {name: _widen(weight) for name, weight in load_file(file).items()}
    except Exception as error:
        # its error class is not public
        raise CheckpointError(f"{file}: unreadable: {str(error)[:120]}") from None


def _widen(weight: Tensor) -> Tensor:
    """Return half precision as float32, in which zoo trains."""
    return weight.float() if weight.dtype in (torch.float16, torch.bfloat16) else weight


def _read_tensors(file: Path) -> dict[str, Tensor]:
    """Read what `torch.save` wrote as plain data and tensors alone."""
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        # torch raises errors of several kinds
        cause = str(error).strip().partition("\n")[0][:120]
        problem = "unreadable as plain data and tensors, no code in it was run"
        raise CheckpointError(f"{file}: {problem}: {cause}") from None
    if isinstance(content, Mapping) and isinstance(content.get("model"), Mapping):
        content = content["model"]
    if not isinstance(content, Mapping):
        problem = f"expected a mapping of names to weights, got {type(content).__name__}"
        raise CheckpointError(f"{file}: {problem}")
    wrong = [f"not a tensor: {key}" for key, one in content.items() if not isinstance(one, Tensor)]
    _refuse(file, "not a file of weights", wrong)
    return dict(content)


def read_gguf(file: Path) -> Published:
    """Read a GGUF file of the architecture llama; quantised weights become float32.

    Raises:
        CheckpointError: It is unreadable, or of another architecture.
        PackageError: gguf is missing.
    """
    with explain_imports():
        from gguf import GGUFReader, dequantize

    try:
        reader = GGUFReader(file)
        fields = {name: field.contents() for name, field in reader.fields.items()}
    except Exception as error:
        # it raises errors of several kinds
        raise CheckpointError(f"{file}: unreadable as GGUF: {str(error)[:120]}") from None
    kind = fields.get("general.architecture")
    if kind != "llama":
        raise CheckpointError(f"{file}: of architecture {kind}; of GGUF files only llama is read")

    heads = fields["llama.attention.head_count"]
    settings = {
        "model_type": "llama",
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": fields.get("llama.attention.head_count_kv", heads),
        "max_position_embeddings": fields["llama.context_length"],
        "rms_norm_eps": fields["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": fields.get("llama.rope.freq_base", 10000.0),
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
    }
    weights = {}
    for tensor in reader.tensors:
        numbers = dequantize(tensor.data, tensor.tensor_type)
        weights[_rename_gguf(tensor.name)] = torch.tensor(numbers, dtype=torch.float32)
    for name, weight in weights.items():
        # these files have the rows that belong together side by side, as zoo does
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            count = heads if "q_proj" in name else settings["num_key_value_heads"]
            weights[name] = split_halves(weight, count)
    return Published(file.stem, settings, weights, build_gguf_tokenizer(fields))


def _rename_gguf(name: str) -> str:
    """Return the name of transformers for `blk.3.attn_q.weight`."""
    *block, layer, kind = name.split(".")
    other = f"{GGUF_LAYERS.get(layer, layer)}.{kind}"
    return f"model.layers.{block[1]}.{other}" if block else other


def build_gguf_tokenizer(fields: Mapping[str, Any]) -> str | None:
    """Return the JSON of the tokenizer of a GGUF file; None for a kind that is not known here."""
    with explain_imports():
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    before = {"smollm": [pre_tokenizers.Digits(individual_digits=True)], "gpt-2": []}
    kind = fields.get("tokenizer.ggml.pre", "gpt-2")
    if fields.get("tokenizer.ggml.model") != "gpt2" or kind not in before:
        log.info("the tokenizer %s of the file is not known; the model reads token ids alone", kind)
        return None
    pieces, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({piece: at for at, piece in enumerate(pieces)}, merges))
    steps = [*before[kind], pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    special = [piece for piece, one in zip(pieces, kinds, strict=True) if one == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(piece, normalized=False) for piece in special])
    return str(tokenizer.to_str())
