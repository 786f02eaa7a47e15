"""Convert published weights to a run, whose recipe is written along."""

from __future__ import annotations

import io
import json
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import Tensor, nn

from zoo import config
from zoo.config import Recipe
from zoo.config.overrides import Overrides, join_overrides
from zoo.data.corpus.tokenizer import Subwords, parse_tokenizer
from zoo.data.spec import DataSpec
from zoo.errors import CheckpointError, DataError, RecipeError
from zoo.formats.bert import BertFamily
from zoo.formats.cohere import Cohere2Family
from zoo.formats.config_entries import EntryError, check_entries
from zoo.formats.dinov3 import DINOv3Family
from zoo.formats.folders import new_folder
from zoo.formats.gemma import Gemma2Family, Gemma3Family
from zoo.formats.gguf import read_gguf
from zoo.formats.gpt2 import GPT2Family
from zoo.formats.huggingface import restore_exported
from zoo.formats.hybrids import Lfm2Family, OlmoHybridFamily, Qwen3NextFamily
from zoo.formats.llama import LlamaFamily, MistralFamily, Qwen2Family, Qwen3Family
from zoo.formats.olmo import Olmo2Family, Olmo3Family
from zoo.formats.phi3 import Phi3Family
from zoo.formats.published import EQUIP, TOKENIZER, Pool, Published, PublishedFamily
from zoo.formats.rope_vit import RoPEViTFamily
from zoo.formats.safetensors import read_safetensors
from zoo.formats.smollm3 import SmolLM3Family
from zoo.formats.transformers_outputs import can_compare, compare_with_transformers
from zoo.formats.vit import ViTFamily
from zoo.run import checkpoint, run_dir
from zoo.run.build import build_task
from zoo.run.preflight import build_experiment
from zoo.tasks.base import Task
from zoo.utils import describe_absence, escape_text, raise_if_out_of_memory
from zoo.weights import (
    INDEX,
    SAFETENSORS,
    WeightFiles,
    check_sizes,
    find_repeated,
    find_weights,
    limit_model,
    raise_issues,
)

log = logging.getLogger("zoo")

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
ADAPTER = "adapter_config.json"
MERGE = (
    "merge it into its base model (merge_and_unload of peft, then save_pretrained), "
    "and convert that folder"
)
"""The way on for adapters."""
EXPORTED = "zoo"  # model_type of what `zoo export to=hf` wrote
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
"""Entries by which a configuration has experts."""
FAMILIES: Mapping[str, type[PublishedFamily]] = MappingProxyType(
    {
        "llama": LlamaFamily,
        "mistral": MistralFamily,
        "qwen2": Qwen2Family,
        "qwen3": Qwen3Family,
        "smollm3": SmolLM3Family,
        "olmo2": Olmo2Family,
        "olmo3": Olmo3Family,
        "qwen3_next": Qwen3NextFamily,
        "olmo_hybrid": OlmoHybridFamily,
        "lfm2": Lfm2Family,
        "gemma2": Gemma2Family,
        "gemma3_text": Gemma3Family,
        "cohere2": Cohere2Family,
        "phi3": Phi3Family,
        "gpt2": GPT2Family,
        "bert": BertFamily,
        "vit": ViTFamily,
        "dinov3_vit": DINOv3Family,
        "": RoPEViTFamily,
    }
)
"""The families by `model_type` of config.json; weights without a configuration are RoPE-ViT."""


@dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    """The destination of converted weights."""

    to: str | None = None
    """Run directory to write; null: a new directory, runs/NAME/TIME-HASH."""


@dataclass(frozen=True, kw_only=True)
class ConvertResult:
    """The run that published weights became.

    Attributes:
        recipe: The name of its recipe.
        run: The run directory.
        checkpoint: The checkpoint in it.
        weights: The number of weights that were published.
        dropped: The names of those that a model of zoo has no use for.
        difference: The largest difference of logits, or of states where there is no head, from
            those that transformers computes, relative to 1 + |output|; None where they were not
            compared.
    """

    recipe: str
    run: Path
    checkpoint: Path
    weights: int
    dropped: tuple[str, ...]
    difference: float | None = None

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
            weights of RoPE-ViT as `torch.save` wrote them. A checkpoint that is a folder of shards
            becomes one of one file.
        options: The run directory to write.
        overrides: Changes of the recipe.

    Raises:
        RecipeError: The recipe is wrong, or the run directory exists already.
        CheckpointError: The weights are unreadable, or not those of a model that zoo has.
    """
    if checkpoint.is_sharded(source):
        return _join_shards(source, options, overrides)
    published = read_published(source)
    if published.config.get("model_type") == EXPORTED:
        recipe, task = restore_exported(published, source, overrides)
        converted = Converted(recipe, task, _choose_folder(options, recipe))
    else:
        converted = convert_family(published, source, options, overrides)
    recipe, task, folder = converted.recipe, converted.task, converted.folder

    with new_folder(folder) as unfinished:
        run_dir.create(recipe, unfinished)
        if published.tokenizer is not None:
            (unfinished / TOKENIZER).write_text(published.tokenizer, encoding="utf-8")
        metadata = checkpoint.build_metadata(recipe, task.spec)
        content = {"zoo": metadata, "state_dict": task.state_dict()}
        target = unfinished / "checkpoints" / "best.ckpt"
        checkpoint.write_sealed(checkpoint.serialise(content), target)
    if options.to is None:
        run_dir.name_latest(folder)
    return ConvertResult(
        recipe=recipe.name,
        run=folder,
        checkpoint=folder / "checkpoints" / "best.ckpt",
        weights=len(published.weights),
        dropped=converted.dropped,
        difference=converted.difference,
    )


def _join_shards(source: Path, options: ConvertOptions, overrides: Overrides) -> ConvertResult:
    """Write a sharded checkpoint as one of one file, with the state of its training.

    Raises:
        RecipeError: There are overrides, or the run directory exists already.
        CheckpointError: The folder is damaged.
    """
    content = checkpoint.read(source)
    metadata = content["zoo"]
    recipe = config.from_plain(metadata["recipe"], origin=str(source), name=metadata["name"])
    if overrides:
        hint = "leave the changes out, and give them to the command that reads the new run"
        raise RecipeError(recipe.make_issue("", "a checkpoint is joined with its own recipe", hint))
    folder = _choose_folder(options, recipe)
    target = Path("checkpoints", source.name)
    with new_folder(folder) as unfinished:
        run_dir.create(recipe, unfinished)
        checkpoint.write_sealed(checkpoint.serialise(content), unfinished / target)
    if options.to is None:
        run_dir.name_latest(folder)
    return ConvertResult(
        recipe=recipe.name,
        run=folder,
        checkpoint=folder / target,
        weights=len(content["state_dict"]),
        dropped=(),
    )


class Converted(NamedTuple):
    """A model with published weights.

    Attributes:
        recipe: Its recipe.
        task: The task with the weights.
        folder: The run directory to write.
        dropped: The names of weights that a model of zoo has no use for.
        difference: See `ConvertResult`.
    """

    recipe: Recipe
    task: Task
    folder: Path
    dropped: tuple[str, ...] = ()
    difference: float | None = None


def _choose_folder(options: ConvertOptions, recipe: Recipe) -> Path:
    return Path(options.to) if options.to else run_dir.name_new(recipe)


def convert_family(
    published: Published, source: Path, options: ConvertOptions, overrides: Overrides
) -> Converted:
    """Build the recipe and the model of published weights of one of FAMILIES.

    Raises:
        CheckpointError: The weights are not those of a model that zoo has.
        RecipeError: An override is wrong.
    """
    pool = Pool(published.weights, published.names)
    with _name_source(source, published, f"{published.origin}: an entry is missing or wrong"):
        family = build_family(published, pool)
        sections, spec = family.describe()
        family.check_read()
        spec.check()
        check_sizes(sections["model"], published.weights, published.origin)

    recipe = _build_own_recipe(published, source, sections, spec, overrides)
    folder = _choose_folder(options, recipe)
    if published.tokenizer is not None and recipe.data.options.get("tokens") == "subword":
        defaults = {"data.tokenizer": folder.absolute() / TOKENIZER}
        recipe = build_recipe(published.name, sections, spec, join_overrides(defaults, overrides))

    reason = "its weights do not have the shapes of its configuration"
    with _name_source(source, published, reason):
        family.rename(recipe.model.options["heads"])
    pool.drop(family.dropped)
    raise_issues(source, "damaged, or not published for training", pool.faults)
    issues = [f"missing: {name}" for name in pool.missing]
    issues += [
        f"unknown: {pool.name(name)} {list(weight.shape)}" for name, weight in pool.rest.items()
    ]
    raise_issues(source, "not the weights of its configuration", issues)
    # compared on the meta device before anything is allocated
    compare_shapes(source, build_task(recipe, spec, "meta").model, pool)
    task = _load_task(recipe, spec, pool)
    if not task.model.state_dict().keys() <= pool.taken.keys():
        log.info("no classification head was published; it starts at 0")
    for name in pool.dropped:
        log.info("not used, because models of zoo have no such tensor: %s", name)

    difference = None
    if can_compare(published):
        # overrides may change what the model computes
        plain = build_recipe(published.name, sections, spec, ()) if overrides else recipe
        compared = task if plain.model == recipe.model else _load_task(plain, spec, pool)
        longest = sections["data"].get("length", 0)
        difference = compare_with_transformers(
            source, published, family, compared.model.eval(), spec, longest
        )
    return Converted(recipe, task, folder, tuple(pool.dropped), difference)


def _load_task(recipe: Recipe, spec: DataSpec, pool: Pool) -> Task:
    """Build the task of a recipe with the weights of a pool."""
    task = build_task(recipe, spec)
    task.model.load_state_dict({**task.model.state_dict(), **pool.taken})
    return task


@contextmanager
def _name_source(source: Path, published: Published, reason: str) -> Iterator[None]:
    """Raise CheckpointError, which names the source, for what a configuration breaks."""
    try:
        yield
    except CheckpointError as error:
        origin = f"{published.origin}: " if isinstance(error, EntryError) else ""
        cause = published.name_fields(str(error))
        raise CheckpointError(escape_text(f"{source}: {origin}{cause}")) from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise CheckpointError(escape_text(f"{source}: {reason}: {error!r:.200}")) from None
    except (RecursionError, RuntimeError) as error:
        raise_if_out_of_memory(error)
        cause = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise CheckpointError(escape_text(f"{source}: {reason}: {cause}")) from None


def _build_own_recipe(
    published: Published,
    source: Path,
    sections: Mapping[str, Any],
    spec: DataSpec,
    overrides: Overrides,
) -> Recipe:
    """Return the recipe. Raises CheckpointError where the configuration is wrong."""
    try:
        with limit_model(published.weights, source):
            return build_recipe(published.name, sections, spec, overrides)
    except RecipeError:
        # whose issue is it: the configuration's or an override's?
        if overrides:
            with _name_configuration(source, published), limit_model(published.weights, source):
                build_recipe(published.name, sections, spec, ())
            raise
        with _name_configuration(source, published):
            raise


@contextmanager
def _name_configuration(source: Path, published: Published) -> Iterator[None]:
    """Raise CheckpointError for a recipe that a configuration asks for and that cannot be."""
    try:
        yield
    except RecipeError as error:
        issue = error.issues[0]
        message = f"zoo has no recipe for it: {issue.key}: {issue.problem}"
        raise CheckpointError(escape_text(f"{source}: {published.origin}: {message}")) from None


def build_family(published: Published, pool: Pool) -> PublishedFamily:
    """Return the family of weights. Raises CheckpointError if zoo has none of that kind."""
    kind = check_configuration(published.config)
    vocabulary = None if published.tokenizer is None else Subwords(published.tokenizer)
    return FAMILIES[kind](published.config, pool, vocabulary)


def check_configuration(settings: Mapping[str, Any]) -> str:
    """Return the `model_type` of a configuration whose entries have types that are read.

    Raises:
        CheckpointError: zoo has no such family.
        EntryError: An entry is missing or of a wrong type or range.
    """
    kind = settings.get("model_type", "")
    if not isinstance(kind, str):
        raise EntryError(f"model_type: expected a string, got {kind!r:.40}")
    if kind in FAMILIES:
        check_entries(settings, FAMILIES[kind].required)
        return kind
    if settings.get("kv_lora_rank"):
        reason = f"kv_lora_rank: {kind} has latent attention, which zoo's decoder does not have"
        raise CheckpointError(f"zoo has no recipe for it: {reason}; {EQUIP}")
    # An empty list of layers with experts is that of a dense model.
    is_dense = settings.get("moe_layers") == []
    if not is_dense and any(settings.get(key) for key in EXPERTS):
        reason = f"{kind} is a mixture of experts, which zoo's decoder does not have"
        raise CheckpointError(f"zoo has no recipe for it: {reason}; {EQUIP}")
    if settings.get("attention_chunk_size"):
        reason = f"{kind} attends within chunks of tokens, and zoo's decoder within windows"
        raise CheckpointError(f"zoo has no recipe for it: {reason}; {EQUIP}")
    families = ", ".join([*filter(None, FAMILIES), EXPORTED])
    reason = f"model_type {kind!r} is not known; known are {families}, and RoPE-ViT"
    raise CheckpointError(f"{reason}; {EQUIP}")


def build_recipe(
    name: str, sections: Mapping[str, Any], spec: DataSpec, overrides: Overrides
) -> Recipe:
    """Return the recipe of a converted model, checked.

    Args:
        name: Its name.
        sections: The sections model, data and task.
        spec: The facts of its data.
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


def compare_shapes(source: Path, model: nn.Module, pool: Pool) -> None:
    """Compare weights that were taken with those of a model; a head need not be published.

    Raises:
        CheckpointError: With every weight that is missing, unknown or of another shape.
    """
    expected, weights = model.state_dict(), pool.taken
    issues = [
        f"{pool.name_taken(name)}: {list(weight.shape)} in the file, {list(expected[name].shape)} "
        f"by the recipe"
        for name, weight in weights.items()
        if name in expected and weight.shape != expected[name].shape
    ]
    unknown = [name for name in weights if name not in expected]
    issues += [f"{pool.name_taken(name)}: not in the recipe's model" for name in unknown]
    # a head is published as a whole, or not at all
    parts = ("head.",) if not any(name.startswith("head.") for name in weights) else ()
    absent = [name for name in expected if name not in weights and not name.startswith(parts)]
    issues += [f"{name}: not in the file" for name in absent]
    raise_issues(source, "not the weights of the recipe", issues)


def read_published(source: Path) -> Published:
    """Read a folder or a file of published weights, without running any code in it.

    Raises:
        CheckpointError: It is missing, unreadable, or holds no weights that are read.
    """
    if not os.path.lexists(source):
        raise CheckpointError(f"{source}: {describe_absence(source)}")
    if source.suffix == ".gguf":
        return read_gguf(source)
    if not source.is_dir():
        is_safe = source.suffix == ".safetensors"
        weights = read_safetensors(source) if is_safe else _read_tensors(source)
        return Published(source.stem, {}, weights)

    if (source / ADAPTER).is_file():
        raise CheckpointError(f"{source}: has an adapter of peft ({ADAPTER}); {MERGE}")
    weight_files = find_weights(source)
    if weight_files is None:
        return read_gguf(find_gguf(source))
    if unread := weight_files.list_others():
        log.info("not read, as transformers does not read them: %s", escape_text(", ".join(unread)))
    # the small files first: what is wrong with them is named before safetensors, if that is missing
    settings, tokenizer = read_json(source / "config.json"), source / TOKENIZER
    if not isinstance(settings, dict):
        raise CheckpointError(f"{source / 'config.json'}: not a mapping")
    if settings.get("model_type") != EXPORTED:
        try:
            check_configuration(settings)
        except CheckpointError as error:
            origin = "config.json: " if isinstance(error, EntryError) else ""
            raise CheckpointError(escape_text(f"{source}: {origin}{error}")) from None
    tokenizer_json = None
    if tokenizer.is_file():
        try:
            tokenizer_json = tokenizer.read_text(encoding="utf-8")
            parse_tokenizer(tokenizer_json)
        except (DataError, OSError, ValueError) as error:
            raise CheckpointError(f"{tokenizer}: {error}") from None
    return Published(
        source.resolve().name, settings, read_files(weight_files), tokenizer_json, folder=source
    )


def read_files(weight_files: WeightFiles) -> dict[str, Tensor]:
    """Read the weights of a folder by name.

    Raises:
        CheckpointError: A file is unreadable, or the files do not hold one set of weights.
    """
    tensors = {file: read_safetensors(file) for file in weight_files.files}
    weight_files.check_names({file: [*held] for file, held in tensors.items()})
    return {name: weight for held in tensors.values() for name, weight in held.items()}


def find_gguf(folder: Path) -> Path:
    """Return the GGUF file of a folder without weights that transformers would find.

    Raises:
        CheckpointError: There is no such file, or it is not the only candidate.
    """
    names = sorted(file.name for file in folder.iterdir())
    ggufs = [name for name in names if name.endswith(".gguf")]
    adapters = [name for name in names if name.startswith("adapter_model.")]
    tensors = [name for name in names if name.endswith(".safetensors") and name not in adapters]
    if len(ggufs) == 1 and not tensors:
        return folder / ggufs[0]
    if ggufs:
        message = f"which weights are meant? name one file: {', '.join(ggufs)}"
    elif tensors:
        message = f"no {SAFETENSORS} and no {INDEX}, which transformers reads; there are"
        hint = "if these are the weights, rename the file or restore the index"
        message = f"{message} {', '.join(tensors)}; {hint}"
    elif adapters:
        message = f"{adapters[0]} is an adapter of peft; {MERGE}"
    elif any(name.endswith(PICKLES) for name in names):
        message = "its weights are pickled, which is not read; save them as safetensors"
    else:
        message = "no safetensors in it; name a folder with config.json and its weights"
    raise CheckpointError(escape_text(f"{folder}: {message}"))


def read_json(file: Path) -> Any:
    """Return the content of a JSON file. Raises CheckpointError."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or str(error)
        raise CheckpointError(f"{file}: cannot be read, {reason}") from None
    except (RecursionError, ValueError) as error:
        raise CheckpointError(f"{file}: not JSON: {str(error)[:120]}") from None


def _read_tensors(file: Path) -> dict[str, Tensor]:
    """Read what `torch.save` wrote as plain data and tensors only."""
    try:
        content = checkpoint.load_plain(io.BytesIO(file.read_bytes()))
    except Exception as error:
        raise_if_out_of_memory(error)
        # torch raises errors of several kinds
        cause = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:120]}"
        message = "unreadable as plain data and tensors, no code in it was run"
        hint = "name what torch.save wrote, a GGUF file, or a folder with safetensors"
        raise CheckpointError(f"{file}: {message}, {cause}; {hint}") from None
    if isinstance(content, Mapping) and isinstance(content.get("model"), Mapping):
        if unread := ", ".join(str(key) for key in content if key != "model"):
            log.info("not read of %s, beside its weights: %s", file, escape_text(unread))
        content = content["model"]
    if not isinstance(content, Mapping):
        message = f"expected a mapping of names to weights, got {type(content).__name__}"
        raise CheckpointError(f"{file}: {message}")
    wrong = [
        f"not a tensor: {key}" for key, value in content.items() if not isinstance(value, Tensor)
    ]
    raise_issues(file, "not a file of weights", wrong)
    weights = {str(key): tensor for key, tensor in content.items()}
    raise_issues(file, "damaged", find_repeated(weights))
    return weights
