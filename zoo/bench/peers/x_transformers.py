"""x-transformers, https://github.com/lucidrains/x-transformers: decoders with the positions that zoo has too."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn

from zoo.bench.protocol import Contender, Setting, Shape

NAME, MODULE = "x-transformers", "x_transformers"
FLASH = {"attn_flash": True}  # where the library allows it
OPTIONS: Mapping[str, tuple[str, Mapping[str, bool]]] = MappingProxyType(
    {  # by name: the encoding of zoo's that it is compared with, and what the library has to be told
        "rope": ("rope", {"rotary_pos_emb": True, **FLASH}),
        "alibi": ("alibi", {"alibi_pos_bias": True, **FLASH}),
        "fox": ("fox", {"attn_data_dependent_alibi": True, **FLASH}),
        # as the library computes them unless told
        "alibi (not fused)": ("alibi", {"alibi_pos_bias": True}),
        "fox (not fused)": ("fox", {"attn_data_dependent_alibi": True}),
        "t5": ("t5", {"rel_pos_bias": True}),
        "cope": ("cope", {"attn_use_cope": True}),
    }
)


def contenders(shape: Shape, library: Any) -> list[Contender]:
    """One for each encoding of zoo's that the library has; none for images."""
    if shape.kind != "text":
        return []
    return [
        Contender(
            name=f"{NAME} {name}",
            peer=NAME,
            rival=rival,
            make=partial(_make, library, options),
            generate=partial(_generate, library),
        )
        for name, (rival, options) in OPTIONS.items()
    ]


def _make(library: Any, options: Mapping[str, bool], setting: Setting) -> nn.Module:
    shape = setting.shape
    layers = library.Decoder(
        dim=shape.dim,
        depth=shape.depth,
        heads=shape.heads,
        attn_dim_head=shape.dim // shape.heads,
        verbose=False,
        **options,
    )
    return library.TransformerWrapper(
        num_tokens=shape.outputs,
        max_seq_len=shape.length,
        use_abs_pos_emb=False,
        tie_embedding=True,
        attn_layers=layers,
    )


def _generate(library: Any, model: nn.Module, prompt: Tensor, count: int) -> Tensor:
    return library.AutoregressiveWrapper(model).generate(
        prompt, count, temperature=0.0, cache_kv=True
    )
