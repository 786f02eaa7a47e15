"""The models that are compared: zoo's own with any encodings, and those of other libraries."""

from __future__ import annotations

import importlib
import logging
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import metadata
from itertools import islice
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from zoo import registry
from zoo.attention.coordinates import PositionAugmentation
from zoo.attention.encoding import Dims
from zoo.attention.functional import Attention
from zoo.attention.kv_cache import KeyValueCache
from zoo.attention.layer import SelfAttention
from zoo.attention.mixer import Mixer
from zoo.attention.temperature import Temperature
from zoo.benchmark.protocol import Contender, Make, Shape, Workload, find_refusal
from zoo.config import Recipe, load
from zoo.config.tree import collect_issues
from zoo.data.spec import ImageSpec, TextSpec
from zoo.encodings.common.chains import build_shortest_chain, format_chain
from zoo.errors import ARGUMENT, ConfigIssue, OptionError, RecipeError
from zoo.models.decoder import Decoder
from zoo.models.generation import sample_tokens
from zoo.models.layer_types import LAYER_KEYS
from zoo.models.transformer import find_transformers
from zoo.models.vit import ViT
from zoo.options import Choice
from zoo.packages import suggest_install
from zoo.run.build import build_factories

log = logging.getLogger("zoo")


ScoreOption = Literal["softcap", "sinks", "temperature"]
# by name: the options of zoo's models that are measured, with the values of Gemma 2 and Llama 4
SCORES: Mapping[ScoreOption, Mapping[str, Any]] = MappingProxyType(
    {
        "softcap": {"softcap": 50.0},
        "sinks": {"sinks": True},
        "temperature": {"temperature": Temperature()},
    }
)

# by kind of a shape: the model of recipes whose layers are measured
MODELS: Mapping[str, str] = MappingProxyType({"image": "vit", "text": "decoder"})
PATTERN_KEYS = (*LAYER_KEYS, "layer_types", "layer_pattern")

FLASH = {"attn_flash": True}  # where x-transformers allows it

# by name: the encoding of zoo that it is compared with, and the library's options
X_TRANSFORMERS: Mapping[str, tuple[str, Mapping[str, bool]]] = MappingProxyType(
    {
        "rope": ("rope", {"rotary_pos_emb": True, **FLASH}),
        "alibi": ("alibi", {"alibi_pos_bias": True, **FLASH}),
        "fox": ("fox", {"attn_data_dependent_alibi": True, **FLASH}),
        # as the library computes them by default
        "alibi (not fused)": ("alibi", {"alibi_pos_bias": True}),
        "fox (not fused)": ("fox", {"attn_data_dependent_alibi": True}),
        "t5": ("t5", {"rel_pos_bias": True}),
        "cope": ("cope", {"attn_use_cope": True}),
    }
)

TIMM_SIZES: Mapping[int, str] = MappingProxyType({384: "small", 768: "base"})  # by width
TIMM: Mapping[str, str] = MappingProxyType(
    {
        "learned": "vit_{size}_patch16_224",
        "rope_axial": "vit_{size}_patch16_rope_224",
        "rope_mixed": "vit_{size}_patch16_rope_mixed_224",
    }
)


def choose_contenders(
    encodings: Sequence[Sequence[Choice]],
    against: Sequence[Choice] | None,
    workload: Workload,
    lengths: Sequence[int],
    scores: Sequence[ScoreOption] = (),
    layers: Sequence[Recipe] = (),
) -> tuple[list[Contender], dict[str, str]]:
    """Choose the reference and the encodings that the sizes allow.

    Args:
        encodings: Chains of encodings; empty for all, or for none if there are `scores` or
            `layers`.
        against: The chain that is the reference; None for that of the shape.
        workload: The sizes, the device and the augmentation of all models.
        lengths: The lengths to measure at.
        scores: Options of scores with which the reference is measured too.
        layers: Recipes whose layers differ, which are measured in these sizes.

    Returns:
        The contenders, the reference first, and {encoding: why it is left out}. If encodings were
        named, those that are left out are logged.

    Raises:
        RecipeError: The reference does not apply, or nothing else does.
    """
    workloads = [workload.with_length(length) for length in lengths]
    if reason := find_refusal(build_contender([Choice("none")]), workloads):
        raise RecipeError(ConfigIssue(ARGUMENT, "lengths", reason))
    chain = against or [Choice(workload.shape.default_reference)]
    reference = build_contender(chain)
    if reason := find_refusal(reference, workloads):
        hint = f"name an encoding for {workload.shape.kind}s"
        raise RecipeError(ConfigIssue(ARGUMENT, "against", reason, hint))

    named = [build_contender(choices) for choices in encodings]
    if not (encodings or scores or layers):
        named = build_all_contenders()
    named += [build_contender(chain, score) for score in scores]
    named += [build_mixed_contender(recipe) for recipe in layers]
    chosen, excluded = [reference], {}
    # one that was named twice, or is the reference, is measured once
    for contender in {contender.name: contender for contender in named}.values():
        if contender.name == reference.name:
            continue
        if reason := find_refusal(contender, workloads):
            excluded[contender.name] = reason
        else:
            chosen.append(contender)
    if excluded and len(chosen) == 1:
        raise RecipeError(*(ConfigIssue(ARGUMENT, *pair) for pair in excluded.items()))
    for name, reason in excluded.items() if encodings or scores or layers else ():
        log.info("%s is left out: %s", name, reason)
    return chosen, excluded


def build_all_contenders() -> list[Contender]:
    """Build a contender for each registered encoding, in the shortest chain it can be in."""
    classes = [registry.find("encodings", name) for name in registry.names("encodings")]
    return [build_contender(build_shortest_chain(cls)) for cls in classes]


def build_contender(choices: Sequence[Choice], scores: ScoreOption | None = None) -> Contender:
    """Build the contender of a chain of encodings and an option of scores, named after them."""
    options = SCORES[scores] if scores else {}

    def make(workload: Workload) -> nn.Module:
        return _build_model(workload, {"encoding": tuple(choices), **options})

    def layer(workload: Workload) -> Attention:
        shape = workload.shape
        side = shape.length // shape.patch_size
        grid = (side, side) if shape.kind == "image" else (shape.length,)
        # depth 2, since the last layer may have less to do
        dims = Dims(shape.dim, shape.heads, len(grid), grid, depth=2)
        # as in a model of that kind
        is_text = shape.kind == "text"
        chain = _index_positions(tuple(choices)) if is_text else choices
        return Attention(dims, chain, causal=is_text, **options)

    name = f"{format_chain(choices)} with {scores}" if scores else format_chain(choices)
    return replace(_build_own_contender(name, make), layer=layer)


def load_layers(names: Sequence[str]) -> list[Recipe]:
    """Load the recipes whose layers are measured.

    Args:
        names: Names of recipes, or files.

    Raises:
        RecipeError: A recipe is wrong, or all its layers are alike; all issues are reported.
    """
    recipes, issues = [], list[ConfigIssue]()
    for number, name in enumerate(names):
        with collect_issues(issues):
            recipes.append(load(name))
            if not recipes[-1].model.options.get("layer_types"):
                message = f"all layers of {recipes[-1].name} are alike"
                hint = "name a recipe with model.layer_types, or its encoding in place of it"
                key = f"layers.{number}"
                raise RecipeError(ConfigIssue(ARGUMENT, key, message, hint))
    counts = Counter(recipe.name for recipe in recipes)
    for name in [name for name, count in counts.items() if count > 1]:
        message = f"two recipes are called {name}, and rows are named for recipes"
        issues.append(ConfigIssue(ARGUMENT, "layers", message, "rename a file, or list it once"))
    if issues:
        raise RecipeError(*issues)
    return recipes


def build_mixed_contender(recipe: Recipe) -> Contender:
    """Build the contender of a recipe whose layers differ.

    It has the encodings, types and pattern of the recipe, and the sizes of the workload.
    """
    model_options = recipe.model.options
    options = {key: model_options[key] for key in PATTERN_KEYS if key in model_options}

    def make(workload: Workload) -> nn.Module:
        if recipe.model.name != MODELS[workload.shape.kind]:
            message = f"model {recipe.model.name} is not measured with {workload.shape.kind}s"
            raise OptionError("layers", f"{message}; choose another shape")
        try:
            return _build_model(workload, options)
        except OptionError as error:
            # the depth is that of the shape
            if error.key != "layer_pattern":
                raise
            message = f"its pattern is longer than the depth, {workload.shape.depth}"
            raise OptionError("layers", f"{message}; choose another shape") from None

    return _build_own_contender(f"layers of {recipe.name}", make)


def _build_own_contender(name: str, make: Make) -> Contender:
    """Build a contender of zoo, which has a KV cache."""
    return Contender(
        name=name,
        make=make,
        generate=_generate,
        stream=_stream_tokens,
        cache=_measure_cache,
        describe_backend=_describe_backend,
    )


def _build_model(workload: Workload, options: Mapping[str, Any]) -> nn.Module:
    """Build a model of a shape; encodings among its options are choices."""
    if workload.shape.kind == "image":
        return _build_vit(workload, build_factories(options))
    return _build_decoder(workload, build_factories(_index_positions(options)))


def _build_vit(workload: Workload, options: Mapping[str, Any]) -> ViT:
    shape = workload.shape
    if "temperature" in options:
        message = "patches have no order by which a temperature could grow"
        raise OptionError("scores", message)
    return ViT(
        ImageSpec(3, shape.length, shape.length, shape.outputs),
        dim=shape.dim,
        depth=shape.depth,
        heads=shape.heads,
        patch_size=shape.patch_size,
        pool="class",
        position_augmentation=_build_augmentation(workload),
        **options,
    )


def _index_positions(value: Any) -> Any:
    """Make all encodings among options read indices, whatever they read by default.

    The length of text is unknown until it has been read.
    """
    if isinstance(value, Choice):
        return Choice(value.name, {"coordinates": "index", **value.options})
    if isinstance(value, Mapping):
        return {key: _index_positions(nested) for key, nested in value.items()}
    return tuple(map(_index_positions, value)) if isinstance(value, tuple) else value


def _build_decoder(workload: Workload, options: Mapping[str, Any]) -> Decoder:
    shape = workload.shape
    return Decoder(
        TextSpec(shape.length, NumberVocabulary(shape.outputs)),
        dim=shape.dim,
        depth=shape.depth,
        heads=shape.heads,
        position_augmentation=_build_augmentation(workload),
        **options,
    )


def _build_augmentation(workload: Workload) -> PositionAugmentation:
    return PositionAugmentation(jitter=workload.jitter, per_sample=workload.jitter > 0)


class NumberVocabulary:
    """A vocabulary of tokens without meaning."""

    unit: Literal["token"] = "token"

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def encode(self, text: str) -> list[int]:
        """Parse text that lists token numbers."""
        return [int(word) for word in text.split()]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return tokens as a list of numbers."""
        return " ".join(map(str, tokens))

    def to_dict(self) -> dict[str, str]:
        """Return what identifies the vocabulary."""
        return {"count": str(self.count)}


def _stream_tokens(model: nn.Module, prompt: Tensor) -> Iterator[int]:
    tokens = prompt[0].tolist()
    return sample_tokens(model, tokens, KeyValueCache(), torch.Generator(), temperature=0)


def _generate(model: nn.Module, prompt: Tensor, count: int) -> list[int]:
    return list(islice(_stream_tokens(model, prompt), count))


def _measure_cache(model: nn.Module, prompt: Tensor) -> int:
    """Return the bytes of keys, values and values per token that a cache keeps of a prompt."""
    cache = KeyValueCache()
    model(prompt, context=cache)
    return sum(size.bytes for size in cache.measure().values())


class _BackendsFound(Exception):
    """Ends a forward pass once the backends are known."""


def _describe_backend(model: nn.Module, inputs: Tensor, device: str) -> str:
    """Return the backend of the first layer of each type, and why it was chosen."""
    backends: dict[str, None] = {}
    (transformer,) = find_transformers(model)
    types = transformer.layer_types or ("",)
    firsts = sorted(types.index(name) for name in set(types))

    # a hook sees the inputs of a layer before anything expensive is computed
    def note(layer: nn.Module, arguments: tuple[Any, ...]) -> None:
        assert isinstance(layer, SelfAttention | Mixer)
        tokens, chain, _ = arguments
        backends["{} ({})".format(*layer.plan(tokens, chain, device))] = None
        if layer.dims.layer == firsts[-1]:
            raise _BackendsFound

    layers = [module for module in model.modules() if isinstance(module, SelfAttention | Mixer)]
    hooks = [layers[number].register_forward_pre_hook(note) for number in firsts]
    try:
        model(inputs)
    except _BackendsFound:
        return ", ".join(backends)
    finally:
        for hook in hooks:
            hook.remove()
    raise AssertionError("a model that does not run its layers")


def build_peers(shape: Shape, names: Collection[str]) -> list[Contender]:
    """Build the contenders of other libraries that have a counterpart among zoo's `names`.

    Log each library that is needed and cannot be imported.
    """
    models = [*_list_x_transformers(shape), *_list_timm(shape)]
    wanted = [peer for peer in models if peer.counterpart in names]
    missing = set()
    for library in dict.fromkeys(peer.library for peer in wanted):
        assert library is not None
        try:
            importlib.import_module(library.replace("-", "_"))
        except Exception as error:
            # a broken library raises anything
            log.info("%s", _describe_missing(library, error))
            missing.add(library)
    return [peer for peer in wanted if peer.library not in missing]


def read_versions(contenders: Collection[Contender]) -> dict[str, str]:
    """Return {library: version} of the libraries of some contenders."""
    libraries = {contender.library for contender in contenders if contender.library}
    return {name: _read_version(name) for name in sorted(libraries)}


def _read_version(library: str) -> str:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return "unknown"


def _describe_missing(library: str, error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name == library.replace("-", "_"):
        return f"{library} is not installed and is left out: {suggest_install(library)}"
    return f"{library} cannot be imported and is left out: {error}"


def _list_x_transformers(shape: Shape) -> list[Contender]:
    """List the decoders of https://github.com/lucidrains/x-transformers."""
    if shape.kind != "text":
        return []
    return [
        Contender(
            name=f"x-transformers {name}",
            library="x-transformers",
            counterpart=counterpart,
            make=partial(_make_decoder, options),
            generate=_generate_with_peer,
        )
        for name, (counterpart, options) in X_TRANSFORMERS.items()
    ]


def _make_decoder(options: Mapping[str, bool], workload: Workload) -> nn.Module:
    library: Any = importlib.import_module("x_transformers")
    shape = workload.shape
    layers = library.Decoder(
        dim=shape.dim,
        depth=shape.depth,
        heads=shape.heads,
        attn_dim_head=shape.dim // shape.heads,
        verbose=False,
        **options,
    )
    model: nn.Module = library.TransformerWrapper(
        num_tokens=shape.outputs,
        max_seq_len=shape.length,
        use_abs_pos_emb=False,
        tie_embedding=True,
        attn_layers=layers,
    )
    return model


def _generate_with_peer(model: nn.Module, prompt: Tensor, count: int) -> object:
    library: Any = importlib.import_module("x_transformers")
    wrapper = library.AutoregressiveWrapper(model)
    return wrapper.generate(prompt, count, temperature=0.0, cache_kv=True)


def _list_timm(shape: Shape) -> list[Contender]:
    """List the vision transformers of https://github.com/huggingface/pytorch-image-models."""
    size = TIMM_SIZES.get(shape.dim)
    if shape.kind != "image" or size is None or shape.patch_size != 16 or shape.depth != 12:
        return []
    return [
        Contender(
            name=f"timm {counterpart}",
            library="timm",
            counterpart=counterpart,
            make=partial(_make_vit, name.format(size=size)),
        )
        for counterpart, name in TIMM.items()
    ]


def _make_vit(name: str, workload: Workload) -> nn.Module:
    library: Any = importlib.import_module("timm")
    shape = workload.shape
    model: nn.Module = library.create_model(name, img_size=shape.length, num_classes=shape.outputs)
    return model
