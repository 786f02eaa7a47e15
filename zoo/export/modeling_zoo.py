"""Models of zoo for Hugging Face transformers, computed by zoo: pip install transformer-zoo.

`zoo export` copies this file into a folder; `trust_remote_code=True` lets transformers run it. The
recipe of the model is the entry `zoo` of config.json.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BatchFeature, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.image_processing_base import ImageProcessingMixin
from transformers.modeling_outputs import (
    CausalLMOutputWithPast,
    ImageClassifierOutput,
    MaskedLMOutput,
    SequenceClassifierOutput,
)

try:
    from zoo.attention.kv_cache import KeyValueCache, SegmentMemory
    from zoo.export.huggingface import PixelReader, build_model
except ImportError as error:
    raise ImportError("this model is computed by zoo: pip install transformer-zoo") from error


class ZooConfig(PreTrainedConfig):  # type: ignore[misc]
    """Configuration of a model of zoo.

    Args:
        zoo: The recipe, and what the model knows of its data.
        kwargs: Entries of any configuration.
    """

    model_type = "zoo"
    keys_to_ignore_at_inference = ("cache",)

    def __init__(self, zoo: dict[str, Any] | None = None, **kwargs: Any) -> None:
        self.zoo = zoo
        super().__init__(**kwargs)


class ZooCache:
    """What zoo remembers of earlier tokens, as `generate` of transformers handles it.

    Args:
        model: The model that will fill it.
    """

    is_compileable = False
    is_croppable = False

    def __init__(self, model: nn.Module) -> None:
        length = getattr(model, "memory_length", 0)
        self.context = SegmentMemory(length) if length else KeyValueCache()

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of tokens so far."""
        return self.context.seen

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Let each row go on from another one."""
        self.context.reorder(beam_idx)


class ZooModel(PreTrainedModel):  # type: ignore[misc]
    """A model of zoo; its weights have the names of a checkpoint."""

    config_class = ZooConfig
    base_model_prefix = "model"

    def __init__(self, config: ZooConfig) -> None:
        super().__init__(config)
        # transformers may be building on the meta device; buffers are not drawn again there
        with torch.device("cpu"):
            self.model = build_model(config.zoo or {})
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Keep the weights that zoo has drawn."""

    def get_input_embeddings(self) -> nn.Module:
        """Return the table of tokens."""
        return self.model.get_submodule("embed_tokens")


def _locate_documents(input_ids: Tensor, attention_mask: Tensor | None) -> Tensor | None:
    """Return documents [B, M] of a mask [B, M] for all tokens so far; None without padding."""
    if attention_mask is None:
        return None
    if attention_mask.dim() != 2:
        raise ValueError(f"attention_mask must be [batch, tokens], got {attention_mask.shape}")
    return None if bool(attention_mask.bool().all()) else attention_mask.long() - 1


class ZooForCausalLM(ZooModel, GenerationMixin):  # type: ignore[misc]
    """A decoder of zoo; `generate` uses zoo's own cache."""

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        cache: ZooCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        return_dict: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Compute logits [B, N, V] of tokens [B, N]; `attention_mask` covers cached tokens too."""
        if use_cache and cache is None and not self.training:
            cache = ZooCache(self.model)
        count, index = input_ids.shape[1], None
        documents = _locate_documents(input_ids, attention_mask)
        if documents is not None:
            index = ((documents + 1).cumsum(1) - 1).clamp(min=0)[:, -count:]
            documents = documents[:, -count:]
            # the token that pads need not be in the table
            input_ids = input_ids.where(documents >= 0, 0)

        logits = self.model(
            input_ids,
            documents,
            index,
            context=None if cache is None else cache.context,
            last=logits_to_keep or None,
        )
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits, labels, logits.shape[-1], num_items_in_batch=num_items_in_batch
            )
        output = CausalLMOutputWithPast(loss=loss, logits=logits, cache=cache)
        return output.to_tuple() if return_dict is False else output


class ZooForMaskedLM(ZooModel):
    """An encoder of zoo that predicts masked tokens."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        return_dict: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Compute logits [B, N, V] of tokens [B, N]; the mask token is V."""
        documents = _locate_documents(input_ids, attention_mask)
        if documents is not None:
            input_ids = input_ids.where(documents >= 0, 0)
        logits = self.model(input_ids, documents)
        loss = None if labels is None else F.cross_entropy(logits.mT, labels)
        output = MaskedLMOutput(loss=loss, logits=logits)
        return output.to_tuple() if return_dict is False else output


class ZooForSequenceClassification(ZooModel):
    """An encoder of zoo that predicts the class of a text."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        return_dict: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Compute logits [B, classes] of tokens [B, N]."""
        if attention_mask is not None:
            input_ids = input_ids.where(attention_mask.bool(), -1)
        logits = self.model(input_ids)
        loss = None if labels is None else F.cross_entropy(logits, labels)
        output = SequenceClassifierOutput(loss=loss, logits=logits)
        return output.to_tuple() if return_dict is False else output


class ZooForImageClassification(ZooModel):
    """A vision transformer of zoo, for images of any size that its patches divide."""

    main_input_name = "pixel_values"

    def forward(
        self,
        pixel_values: Tensor,
        labels: Tensor | None = None,
        return_dict: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Compute logits [B, classes] of images [B, C, H, W]."""
        logits = self.model(pixel_values)
        loss = None if labels is None else F.cross_entropy(logits, labels)
        output = ImageClassifierOutput(loss=loss, logits=logits)
        return output.to_tuple() if return_dict is False else output


class ZooImageProcessor(ImageProcessingMixin):  # type: ignore[misc]
    """Makes model inputs of pictures exactly as `zoo predict` does.

    Args:
        zoo: The recipe, and what the model knows of its data.
        kwargs: Entries of any image processor.
    """

    model_input_names = ("pixel_values",)

    def __init__(self, zoo: dict[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.zoo = zoo

    def __call__(self, images: Any, return_tensors: str | None = None, **kwargs: Any) -> Any:
        """Return `pixel_values` [B, C, H, W] of pictures of Pillow, or of arrays [H, W, C]."""
        if kwargs:
            raise ValueError(f"images are prepared as in training: no {', '.join(kwargs)}")
        pictures = list(images) if isinstance(images, list | tuple) else [images]
        pixels = PixelReader(self.zoo or {}).read(pictures)
        return BatchFeature({"pixel_values": pixels}, tensor_type=return_tensors)
