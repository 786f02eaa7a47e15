"""Models of other libraries that are compared with zoo's: x-transformers and timm, if installed."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Collection, Mapping
from functools import partial
from importlib import metadata
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn

from zoo.bench.protocol import Contender, Setting, Shape

log = logging.getLogger("zoo")

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


def build_peers(shape: Shape, names: Collection[str]) -> list[Contender]:
    """Build the contenders of other libraries that have a counterpart among zoo's `names`.

    A library that is needed and cannot be imported is named in the log.
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
            generate=_generate,
        )
        for name, (counterpart, options) in X_TRANSFORMERS.items()
    ]


def _make_decoder(options: Mapping[str, bool], setting: Setting) -> nn.Module:
    library: Any = importlib.import_module("x_transformers")
    shape = setting.shape
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


def _generate(model: nn.Module, prompt: Tensor, count: int) -> object:
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


def _make_vit(name: str, setting: Setting) -> nn.Module:
    library: Any = importlib.import_module("timm")
    shape = setting.shape
    model: nn.Module = library.create_model(name, img_size=shape.length, num_classes=shape.outputs)
    return model
