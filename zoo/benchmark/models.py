"""The models that are compared: zoo's own with any encodings, and those of other libraries."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from importlib import metadata
from itertools import islice
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from zoo import registry
from zoo.attention.chain import make_factory
from zoo.attention.coordinates import PositionAugmentation
from zoo.attention.encoding import Dims
from zoo.attention.functional import Attention
from zoo.attention.kv_cache import KeyValueCache
from zoo.attention.layer import SelfAttention
from zoo.attention.temperature import Temperature
from zoo.benchmark.protocol import Contender, Shape, Workload, find_refusal
from zoo.data.spec import ImageSpec, TextSpec
from zoo.encodings.common.chains import build_shortest_chain, format_chain
from zoo.errors import ARGUMENT, ConfigIssue, OptionError, RecipeError
from zoo.models.decoder import Decoder
from zoo.models.generation import sample_tokens
from zoo.models.vit import ViT
from zoo.options import Choice

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
) -> tuple[list[Contender], dict[str, str]]:
    """Choose the reference and the encodings that the sizes allow.

    Args:
        encodings: Chains of encodings; empty for all, or for none if there are `scores`.
        against: The chain that is the reference; None for that of the shape.
        workload: The sizes, the device and the augmentation of all models.
        lengths: The lengths to measure at.
        scores: Options of scores with which the reference is measured too.

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
        remedy = f"name an encoding for {workload.shape.kind}s"
        raise RecipeError(ConfigIssue(ARGUMENT, "against", reason, remedy))

    named = [build_contender(one) for one in encodings]
    if not encodings and not scores:
        named = build_all_contenders()
    named += [build_contender(chain, one) for one in scores]
    chosen, excluded = [reference], {}
    for one in {one.name: one for one in named}.values():
        if one.name == reference.name:
            continue
        if reason := find_refusal(one, workloads):
            excluded[one.name] = reason
        else:
            chosen.append(one)
    if excluded and len(chosen) == 1:
        raise RecipeError(*(ConfigIssue(ARGUMENT, *pair) for pair in excluded.items()))
    for name, reason in excluded.items() if encodings or scores else ():
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
        build = _build_vit if workload.shape.kind == "image" else _build_decoder
        return build(workload, choices, options)

    def layer(workload: Workload) -> Attention:
        shape = workload.shape
        side = shape.length // shape.patch_size
        grid = (side, side) if shape.kind == "image" else (shape.length,)
        # depth 2, since the last layer may have less to do
        dims = Dims(shape.dim, shape.heads, len(grid), grid, depth=2)
        return Attention(dims, choices, causal=shape.kind == "text", **options)

    return Contender(
        name=f"{format_chain(choices)} with {scores}" if scores else format_chain(choices),
        make=make,
        generate=_generate,
        stream=_stream_tokens,
        describe_backend=_describe_backend,
        layer=layer,
    )


def _build_vit(workload: Workload, choices: Sequence[Choice], options: Mapping[str, Any]) -> ViT:
    shape = workload.shape
    if "temperature" in options:
        problem = "patches have no order by which a temperature could grow"
        raise OptionError("scores", problem)
    return ViT(
        ImageSpec(3, shape.length, shape.length, shape.outputs),
        dim=shape.dim,
        depth=shape.depth,
        heads=shape.heads,
        patch_size=shape.patch_size,
        pool="class",
        encoding={one.name: make_factory(one) for one in choices},
        position_augmentation=_build_augmentation(workload),
        **options,
    )


def _build_decoder(
    workload: Workload, choices: Sequence[Choice], options: Mapping[str, Any]
) -> Decoder:
    """Build a decoder whose positions are indices, whatever an encoding uses by default.

    The length of text is unknown until it has been read.
    """
    shape = workload.shape
    indexed = [Choice(one.name, {"coordinates": "index", **one.options}) for one in choices]
    return Decoder(
        TextSpec(shape.length, NumberVocabulary(shape.outputs)),
        dim=shape.dim,
        depth=shape.depth,
        heads=shape.heads,
        encoding={one.name: make_factory(one) for one in indexed},
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


class _BackendFound(Exception):
    """Ends a forward pass once the backend is known."""


def _describe_backend(model: nn.Module, inputs: Tensor, device: str) -> str:
    """Return the backend of the first layer, and why it was chosen."""

    # a hook of the first layer sees its inputs before anything expensive is computed
    def note(layer: nn.Module, arguments: tuple[Any, ...]) -> None:
        assert isinstance(layer, SelfAttention)
        tokens, chain, _ = arguments
        backend, reason = layer.plan(tokens, chain, device)
        raise _BackendFound(f"{backend} ({reason})")

    first = next(module for module in model.modules() if isinstance(module, SelfAttention))
    hook = first.register_forward_pre_hook(note)
    try:
        model(inputs)
    except _BackendFound as found:
        return str(found)
    finally:
        hook.remove()
    raise AssertionError("a model that does not run its first layer")


def build_peers(shape: Shape, names: Collection[str]) -> list[Contender]:
    """Build the contenders of other libraries that have a counterpart among zoo's `names`.

    Log each library that is needed and cannot be imported.
    """
    models = [*_list_x_transformers(shape), *_list_timm(shape)]
    wanted = [one for one in models if one.counterpart in names]
    missing = set()
    for library in dict.fromkeys(one.library for one in wanted):
        assert library is not None
        try:
            importlib.import_module(library.replace("-", "_"))
        except Exception as error:
            # a broken library raises anything
            log.info("%s", _describe_missing(library, error))
            missing.add(library)
    return [one for one in wanted if one.library not in missing]


def read_versions(contenders: Collection[Contender]) -> dict[str, str]:
    """Return {library: version} of the libraries of some contenders."""
    libraries = {one.library for one in contenders if one.library}
    return {name: _read_version(name) for name in sorted(libraries)}


def _read_version(library: str) -> str:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return "unknown"


def _describe_missing(library: str, error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name == library.replace("-", "_"):
        return f"{library} is not installed and is left out: pip install {library}"
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
