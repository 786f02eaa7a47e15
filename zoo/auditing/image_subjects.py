"""The subject of an audit for vision transformers of timm: the tokens are patches of an image."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from zoo.auditing.subject import AuditSubject, Logits, NotAskedError
from zoo.integrations.evaluating import evaluating, stirred

KINDS = 64  # of patches that an image is made of
FILLER = 0  # the kind of the patches after the last token


def is_image_model(model: nn.Module) -> bool:
    """Return whether a model is a vision transformer of timm, with patches on a grid."""
    is_timm = any(cls.__module__.startswith("timm.") for cls in type(model).__mro__)
    parts = ("forward_features", "num_prefix_tokens", "patch_embed", "blocks")
    return is_timm and all(hasattr(model, name) for name in parts)


def make_image_subject(model: Any) -> AuditSubject:
    """Return the subject for a vision transformer of timm.

    Token ids are kinds of patches, which fill the grid of an image from its first row on; what is
    compared is the states of the patches after the last layer. The model takes no positions, masks
    or documents, so that laws about these are not asked.
    """
    rows, columns = model.patch_embed.grid_size
    height, width = model.patch_embed.patch_size
    channels = model.patch_embed.proj.in_channels
    draw = torch.Generator("cpu").manual_seed(0)
    patches = torch.randn(KINDS, channels, height, width, generator=draw, device="cpu")

    @torch.no_grad()
    def compute_states(ids: Tensor) -> Tensor:
        batch, count = ids.shape
        if count > rows * columns:
            raise NotAskedError(f"{count} tokens are more than the {rows * columns} of an image")
        kinds = ids.new_full((batch, rows * columns), FILLER)
        kinds[:, :count] = ids
        grid = patches[kinds.cpu()].unflatten(1, (rows, columns))  # [B, rows, columns, C, h, w]
        images = grid.permute(0, 3, 1, 4, 2, 5).reshape(batch, channels, rows * height, -1)
        # The laws hold for any weights; fresh layer scales near 0 would hide what attention does.
        with stirred(model), evaluating(model):
            states: Tensor = model.forward_features(images.to(next(model.parameters())))
        first = model.num_prefix_tokens
        return states[:, first : first + count]

    return AuditSubject(
        logits=cast(Logits, compute_states),
        vocab_size=KINDS,
        length=rows * columns,
        is_causal=False,
        name=type(model).__name__,
    )
