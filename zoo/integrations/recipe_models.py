"""Models of timm and transformers in recipes: `model: {name: timm, arch: vit_small_patch16_224}`.

The encodings of the recipe replace the positions of the model, as with `zoo.equip`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from zoo.attention.coordinates import PositionAugmentation
from zoo.attention.encoding import EncodingFactories
from zoo.attention.layer import Context, check_layers
from zoo.attention.tokens import document_positions
from zoo.data.spec import ImageSpec, TextSpec
from zoo.errors import CheckpointError, OptionError, ZooError
from zoo.integrations.equip import find_adapter, install
from zoo.integrations.equipment import NAME
from zoo.options import Between, Count
from zoo.packages import explain_imports
from zoo.registry import register
from zoo.utils import describe_absence, escape_text, raise_if_out_of_memory
from zoo.weights import check_sizes, limit_model, read_shapes


@register
class TimmClassifier(nn.Module):
    """A vision transformer of timm: images [B, C, H, W] -> logits [B, classes].

    Args:
        spec: Channels, size and classes of the images.
        arch: Name of the model in timm, such as vit_small_patch16_224.
        encoding: Positional encodings by name, in place of the model's own.
        position_augmentation: Random changes of positions in training.
        patch_size: Height and width of a patch in pixels; that of the architecture by default.
        pretrained: Start from the weights that timm downloads; otherwise from random ones.
        trainable: Parts of the names of weights to train in addition to the encodings; empty: all.
        lora_rank: Rank of LoRA adapters (package peft) in the targets; null: no adapters.
        lora_targets: Names of the linear layers with adapters.
        backend: The attention backend.

    Raises:
        OptionError: timm does not know the architecture, or an option does not fit it.
    """

    name = "timm"

    def __init__(
        self,
        spec: ImageSpec,
        *,
        arch: str,
        encoding: EncodingFactories,
        position_augmentation: PositionAugmentation = PositionAugmentation(),
        patch_size: Count | None = None,
        pretrained: bool = False,
        trainable: tuple[str, ...] = (),
        lora_rank: Annotated[int, Between(1)] | None = None,
        lora_targets: tuple[str, ...] = ("qkv", "proj"),
        backend: Literal["auto", "reference", "chunked", "sdpa", "flex"] = "auto",
    ) -> None:
        super().__init__()
        with explain_imports():
            import timm
        if not timm.is_model(arch):
            raise OptionError("arch", f"timm has no model {arch!r}; timm.list_models() names them")
        # A null patch_size is left out, because timm would take it for a value.
        sizes = {} if patch_size is None else {"patch_size": patch_size}
        try:
            self.model: Any = timm.create_model(
                arch,
                pretrained=pretrained and not _is_meta(),
                img_size=spec.grid,
                in_chans=spec.channels,
                num_classes=spec.classes,
                dynamic_img_size=True,
                **sizes,
            )
        except (TypeError, AssertionError, RuntimeError) as error:
            problem = f"{arch} cannot be built for images of {spec.height} x {spec.width}"
            raise OptionError("arch", f"{problem}: {error}") from None
        self._check_size(*spec.grid)
        install(
            self.model,
            find_adapter(self.model, None),
            encoding,
            None,
            backend,
            augmentation=position_augmentation,
        )
        _choose_trainable(self.model, trainable, lora_rank, lora_targets)

    def forward(self, images: Tensor) -> Tensor:
        """Compute logits [B, classes] of images [B, C, H, W]."""
        self._check_size(*images.shape[2:])
        return self.model(images)

    def features(self, images: Tensor, layers: Sequence[int] = (-1,)) -> list[Tensor]:
        """Compute maps [B, D, h, w] of the patches after some blocks, as `ViT.features` does."""
        self._check_size(*images.shape[2:])
        chosen = check_layers(layers, len(self.model.blocks))
        # timm returns each once, in the order of the blocks
        order = sorted({*chosen})
        maps = self.model.forward_intermediates(images, order, intermediates_only=True)
        return [maps[order.index(number)] for number in chosen]

    @property
    def patch_shape(self) -> tuple[int, int]:
        """Height and width of a patch in pixels."""
        return tuple(self.model.patch_embed.patch_size)

    def _check_size(self, *sides: int) -> None:
        patch = self.patch_shape
        if any(side % one for side, one in zip(sides, patch, strict=True)):
            problem = f"patches of {patch[0]} x {patch[1]} do not divide images"
            raise OptionError("arch", f"{problem} of {' x '.join(map(str, sides))}")


@register
class TransformersLM(nn.Module):
    """A causal language model of transformers: tokens [B, N] -> logits [B, N, V].

    Args:
        spec: Vocabulary and length of the texts. The data should use the model's own tokenizer:
            `data.tokenizer: FOLDER/tokenizer.json`.
        path: The folder of the model, with config.json and weights.
        encoding: Positional encodings by name, in place of the model's own.
        pretrained: Start from the weights in the folder; otherwise from random ones.
        trainable: Parts of the names of weights to train in addition to the encodings; empty: all.
        lora_rank: Rank of LoRA adapters (package peft) in the targets; null: no adapters.
        lora_targets: Names of the linear layers with adapters.
        backend: The attention backend.

    Raises:
        OptionError: The folder has no causal model that can be equipped, or an option does not fit.
    """

    name = "transformers"
    memory_length = 0

    def __init__(
        self,
        spec: TextSpec,
        *,
        path: str,
        encoding: EncodingFactories,
        pretrained: bool = True,
        trainable: tuple[str, ...] = (),
        lora_rank: Annotated[int, Between(1)] | None = None,
        lora_targets: tuple[str, ...] = ("q_proj", "v_proj"),
        backend: Literal["auto", "reference", "chunked", "sdpa", "flex"] = "auto",
    ) -> None:
        super().__init__()
        self.model, self.vocabulary_size = _load(path, pretrained), len(spec.vocabulary)
        if self.vocabulary_size > self.model.config.vocab_size:
            problem = f"the data has {self.vocabulary_size:,} tokens, the model"
            remedy = f"use the tokenizer of the model: data.tokenizer={path}/tokenizer.json"
            raise OptionError("path", f"{problem} {self.model.config.vocab_size:,}; {remedy}")
        adapter = find_adapter(self.model, None)
        if not adapter.causal:
            problem = f"{type(self.model).__name__} is no causal language model"
            raise OptionError("path", problem)
        install(self.model, adapter, encoding, spec.length, backend)
        _choose_trainable(self.model, trainable, lora_rank, lora_targets)

    def forward(
        self,
        inputs: Tensor,
        documents: Tensor | None = None,
        context: Context | None = None,
        last: int | None = None,
    ) -> Tensor:
        """Compute logits.

        Args:
            inputs: Tokens, int64 [B, N].
            documents: Document numbers, int64 [B, N]. Tokens attend within their document; -1 is
                padding.
            context: None, because such a model has its own cache; see `model.generate`.
            last: Compute logits of only the last `last` tokens.

        Returns:
            Logits [B, N, V], or [B, last, V].

        Raises:
            OptionError: There is a context.
        """
        if context is not None:
            problem = "a model of transformers has its own cache"
            remedy = "write cache=false, or call generate of zoo.load(RUN).model.model"
            raise OptionError("context", f"{problem}; {remedy}")
        # Documents become a mask [B, 1, N, N] and positions that restart in each of them.
        given: dict[str, Any] = {} if last is None else {"logits_to_keep": last}
        # transformers would look for packed sequences in the values of a meta tensor.
        if inputs.is_meta and documents is None:
            documents = torch.zeros_like(inputs)
        if documents is not None:
            is_same = documents[:, :, None] == documents[:, None]
            visible = is_same & (documents >= 0)[:, None]
            given |= {
                "attention_mask": visible.tril()[:, None],
                "position_ids": document_positions(documents),
            }
        out = self.model(input_ids=inputs.clamp(min=0), use_cache=False, **given)
        return out.logits[..., : self.vocabulary_size]


def _is_meta() -> bool:
    """Return whether modules are built on the meta device, only to know their shapes."""
    return torch.get_default_device().type == "meta"


def _load(path: str, pretrained: bool) -> Any:
    """Load a causal language model from a folder, without any download."""
    with explain_imports():
        from transformers import AutoConfig, AutoModelForCausalLM

    folder = Path(path)
    if not (file := folder / "config.json").is_file():
        problem = f"{file}: {describe_absence(file, 'file')}"
        raise OptionError("path", f"{problem}; name the folder of a model")
    shapes = read_shapes(folder)
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
        _refuse_kernels(settings)
        if shapes:
            check_sizes(settings, shapes, file)
        # On the meta device only shapes are needed, so no weights are read.
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        with torch.device("meta"), limit_model(shapes, file) if shapes else nullcontext():
            model: Any = AutoModelForCausalLM.from_config(config)
        if _is_meta():
            return model
        if not pretrained:
            return AutoModelForCausalLM.from_config(config)
        model, found = AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=True, dtype=torch.float32, output_loading_info=True
        )
    except ZooError:
        raise
    except Exception as error:
        raise_if_out_of_memory(error)
        # Configurations of transformers fail in many ways.
        cause = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise OptionError("path", escape_text(f"{folder} cannot be loaded: {cause}")) from None
    if missing := sorted(found["missing_keys"]):
        problem = f"{folder} has no weight {missing[0]}, which would start at random"
        remedy = "set model.pretrained to false, or name another folder"
        raise CheckpointError(escape_text(f"{problem}; {remedy}"))
    for name, parameter in model.named_parameters():
        # on any device
        if not torch.isfinite(parameter).all():
            problem = "has numbers that are NaN or infinite"
            raise CheckpointError(escape_text(f"{folder}: {name} {problem}"))
    return model.to(torch.get_default_device()).train()


def _refuse_kernels(settings: Mapping[str, Any]) -> None:
    """Raise ValueError for an implementation that transformers would download and run."""
    for key, value in settings.items():
        if key.endswith("_implementation") and "/" in str(value):
            raise ValueError(f"{key} is {value}, code of the Hub; remove it from config.json")


def _choose_trainable(
    model: nn.Module, parts: tuple[str, ...], lora_rank: int | None, lora_targets: tuple[str, ...]
) -> None:
    """Freeze all weights except encodings, adapters, and those with one of `parts` in their name.

    Without parts and adapters, all weights stay trainable.
    """
    # Tables of positions are frozen already, and must stay so.
    known = {name: one for name, one in model.named_parameters() if one.requires_grad}
    for part in parts:
        if not any(part in name for name in known):
            raise OptionError("trainable", f"no weight has {part!r} in its name")
    if lora_rank is not None:
        with explain_imports():
            from peft import LoraConfig, inject_adapter_in_model

        config = LoraConfig(r=lora_rank, lora_alpha=2 * lora_rank, target_modules=[*lora_targets])
        try:
            inject_adapter_in_model(config, model)
        except ValueError as error:
            raise OptionError("lora_targets", str(error).partition("\n")[0]) from None
    if not parts and lora_rank is None:
        return
    for name, parameter in known.items():
        parameter.requires_grad_(NAME in name or any(part in name for part in parts))
