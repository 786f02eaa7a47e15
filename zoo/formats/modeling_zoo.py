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
    from zoo.formats.huggingface import PixelReader, build_model
except ImportError as error:
    raise ImportError("this model is computed by zoo: pip install transformer-zoo") from error


CROPPING = {
    "assisted_generation": "assistant_model, prompt_lookup_num_tokens and assistant_early_exit",
    "contrastive_search": "penalty_alpha",
}
"""Modes of `generate` that take tokens back, and the options that choose them."""


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

    def to_dict(self) -> dict[str, Any]:
        """Return the entries of config.json; tools look for the auto class in transformers."""
        entries: dict[str, Any] = super().to_dict()
        autos = [name for name in entries.get("auto_map") or () if name != "AutoConfig"]
        return {**entries, "architectures": autos or entries.get("architectures")}


class ZooCache:
    """The cache of earlier tokens, with the methods that `generate` of transformers calls.

    Args:
        model: The model that will fill it.
    """

    is_compileable = False
    is_croppable = False

    def __init__(self, model: nn.Module) -> None:
        length = getattr(model, "memory_length", 0)
        self.context = SegmentMemory(length) if length else KeyValueCache()
        self.has_ended: Tensor | None = None  # texts [B] after which unknown tokens came

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of tokens so far."""
        return self.context.seen

    def crop(self, maximum_length: int) -> None:
        """Refuse to forget the last tokens.

        Raises:
            ValueError: Always: a state of earlier tokens cannot go back.
        """
        raise ValueError("a cache of zoo cannot go back to fewer tokens; begin a new one")

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder the rows of the batch, as beam search does."""
        self.context.reorder(beam_idx)
        if self.has_ended is not None:
            self.has_ended = self.has_ended[beam_idx]


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

    def find_unknown(self, input_ids: Tensor) -> Tensor:
        """Return which tokens the table does not have, such as an end-of-text token."""
        return input_ids >= self.get_input_embeddings().get_parameter("weight").shape[0]

    def require_known(self, input_ids: Tensor, is_unknown: Tensor) -> None:
        """Check tokens [B, N], of which some are unknown. Raises ValueError."""
        if bool(is_unknown.any()):
            number = int(input_ids[is_unknown][0])
            message = f"token {number} is not in the vocabulary of the model"
            hint = "begin the text with one that is (of lm-eval: prefix_token_id=0)"
            raise ValueError(f"{message}; {hint}, or mask it as padding")


def mark_padding(
    input_ids: Tensor, attention_mask: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Translate an attention mask to the padding arguments of a zoo model.

    Args:
        input_ids: Tokens [B, N]; a token that pads need not be in the model's table.
        attention_mask: 1 for a token, 0 for padding, [B, M]: of cached tokens, too.

    Returns:
        Tokens that are in the table, and documents and indices [B, N], which are None if there is
        no padding.
    """
    if attention_mask is None:
        return input_ids, None, None
    if attention_mask.dim() != 2:
        raise ValueError(f"attention_mask must be [batch, tokens], got {attention_mask.shape}")
    if bool(attention_mask.bool().all()):
        return input_ids, None, None

    count = input_ids.shape[1]
    index = (attention_mask.long().cumsum(1) - 1).clamp(min=0)[:, -count:]
    documents = attention_mask.long()[:, -count:] - 1
    return input_ids.where(documents >= 0, 0), documents, index


def make_output(
    output: type,
    logits: Tensor,
    labels: Tensor | None,
    num_items_in_batch: Tensor | int | None,
    return_dict: bool | None,
    **fields: Any,
) -> Any:
    """Return an output of transformers, or a tuple.

    Args:
        output: Its class.
        logits: Logits [B, classes], or [B, N, V].
        labels: Classes [B] or tokens [B, N]; -100 counts for nothing. None: no loss is computed.
        num_items_in_batch: What the sum of losses is divided by; the number of labels if None.
        return_dict: False for a tuple.
        fields: Further fields of the output.
    """
    loss = None
    if labels is not None:
        reduction = "mean" if num_items_in_batch is None else "sum"
        scores, targets = logits.flatten(0, -2).float(), labels.flatten().to(logits.device)
        loss = F.cross_entropy(scores, targets, reduction=reduction)
        if num_items_in_batch is not None:
            loss = loss / num_items_in_batch
    result = output(loss=loss, logits=logits, **fields)
    return result.to_tuple() if return_dict is False else result


class ZooForCausalLM(ZooModel, GenerationMixin):  # type: ignore[misc]
    """A decoder of zoo; `generate` uses zoo's own cache."""

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def _validate_generation_mode(self, generation_mode: Any, *args: Any, **kwargs: Any) -> None:
        """Refuse modes of `generate` that take tokens back. Raises ValueError."""
        for mode, options in CROPPING.items():
            if generation_mode == mode:
                reason = "takes tokens back, which a cache of zoo cannot"
                raise ValueError(f"{mode.replace('_', ' ')} {reason}; leave out {options}")
        super()._validate_generation_mode(generation_mode, *args, **kwargs)

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, tokenizer: Any = None, **kwargs: Any
    ) -> Any:
        """Prepare a step of `generate`, which reads strings that stop it with the tokenizer."""
        return super().prepare_inputs_for_generation(input_ids, **kwargs)

    def find_end(self, tokens: Tensor, cache: ZooCache | None) -> Tensor:
        """Return which tokens [B, N] are behind the end of their text, and remember these texts.

        Texts of a batch that have ended go on with a token that pads, which the table need not
        have; nothing depends on it. At least one text goes on.

        Raises:
            ValueError: Another token is not in the vocabulary, or text goes on after its end.
        """
        is_unknown = self.find_unknown(tokens)
        is_end = is_unknown.flip(1).cumprod(1).flip(1).bool()
        only_unknown = is_end[:, :1]
        if cache is None or not cache.get_seq_length() or bool(only_unknown.all()):
            is_end = is_end & ~only_unknown
        self.require_known(tokens, is_unknown & ~is_end)
        if cache is not None:
            if cache.has_ended is not None and bool((cache.has_ended & ~is_end[:, 0]).any()):
                raise ValueError("text goes on after a token that is not in the vocabulary")
            if cache.has_ended is not None or bool(is_end.any()):
                cache.has_ended = is_end[:, -1]
        return is_end

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
        tokens, documents, index = mark_padding(input_ids, attention_mask)
        is_end = self.find_end(tokens, cache)
        logits = self.model(
            tokens.where(~is_end, 0),
            documents,
            index,
            context=None if cache is None else cache.context,
            last=logits_to_keep or None,
        )
        if labels is not None:
            # a token predicts the one after it
            labels = F.pad(labels, (0, 1), value=-100)[:, 1:]
        kind = CausalLMOutputWithPast
        return make_output(kind, logits, labels, num_items_in_batch, return_dict, cache=cache)


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
        tokens, documents, _ = mark_padding(input_ids, attention_mask)
        self.require_known(tokens, self.find_unknown(tokens))
        logits = self.model(tokens, documents)
        return make_output(MaskedLMOutput, logits, labels, num_items_in_batch, return_dict)


class ZooForSequenceClassification(ZooModel):
    """An encoder of zoo that classifies text."""

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
        self.require_known(input_ids, self.find_unknown(input_ids))
        logits, kind = self.model(input_ids), SequenceClassifierOutput
        return make_output(kind, logits, labels, num_items_in_batch, return_dict)


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
        logits, kind = self.model(pixel_values), ImageClassifierOutput
        return make_output(kind, logits, labels, num_items_in_batch, return_dict)


class ZooImageProcessor(ImageProcessingMixin):  # type: ignore[misc]
    """Turns pictures into model inputs, exactly as `zoo predict` does.

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
