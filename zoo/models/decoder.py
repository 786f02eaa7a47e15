"""Causal language model in the style of GPT-2 (Radford et al. 2019).

It reads texts of any length that its encoding allows.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor

from zoo.attention.coordinates import PositionAugmentation, set_known_range
from zoo.attention.encoding import Dims, EncodingFactories
from zoo.attention.layer import Context
from zoo.attention.temperature import Temperature
from zoo.attention.tokens import Tokens, document_positions
from zoo.data.spec import TextSpec
from zoo.errors import OptionError
from zoo.models.embedding import LanguageModel, init_weights
from zoo.models.layer_types import LayerTypes
from zoo.models.transformer import AttentionOptions, BlockOptions, Depth, Heads, Softcap
from zoo.options import Between, Count
from zoo.registry import register


@register
class Decoder(LanguageModel):
    """Tokens [B, N] -> logits [B, N, V] of the next token.

    Weights are initialized as in GPT-2.

    Args:
        spec: Vocabulary and length of the texts.
        dim: Model dimension D.
        depth: Number of blocks.
        heads: Number of query heads H.
        kv_heads: Number of key-value heads G (arXiv:2305.13245); H by default.
        head_dim: Head dim K; dim divided by heads by default.
        encoding: Positional encodings by name.
        position_augmentation: Random changes of positions in training.
        block: Options of the blocks.
        tie_embeddings: Predict with the embedding table.
        scale_embeddings: Multiply embeddings by sqrt(dim).
        logit_softcap: Bound c of the logits z, which become c tanh(z / c) (Gemma 2,
            arXiv:2408.00118). None: no bound.
        memory_length: Number of earlier tokens whose states are remembered from batch to batch, in
            training and evaluation (Transformer-XL, arXiv:1901.02860). Each row of a batch must
            then continue the same row of the batch before.
        window: A token attends to the last `window` tokens, including itself. None: to all.
        softcap: Bound c of the scaled products s of queries and keys, which become c tanh(s / c)
            before biases and the softmax (Gemma 2, arXiv:2408.00118). None: no bound.
        sinks: Add a learned score per head to the denominator of the softmax (GPT-OSS,
            arXiv:2508.10925).
        temperature: Factors of queries that grow with the position (Llama 4). None: no factors.
        layer_types: Types of layers, by name what differs from the options of the model: encoding,
            window, softcap, sinks or temperature. None: all layers are alike.
        layer_pattern: The types in the order of the layers, repeated over the depth; `local*5`
            stands for five layers of a type.
        attention: "softmax", or "linear" for linear attention with elu features.
        backend: The attention backend.

    Raises:
        OptionError: An option does not fit the others.
    """

    def __init__(
        self,
        spec: TextSpec,
        *,
        dim: Count,
        depth: Depth,
        heads: Heads,
        kv_heads: Heads | None = None,
        head_dim: Count | None = None,
        encoding: EncodingFactories,
        position_augmentation: PositionAugmentation = PositionAugmentation(),
        block: BlockOptions = BlockOptions(),
        tie_embeddings: bool = True,
        scale_embeddings: bool = False,
        logit_softcap: Softcap | None = None,
        memory_length: Annotated[int, Between(0)] = 0,
        window: Count | None = None,
        softcap: Softcap | None = None,
        sinks: bool = False,
        temperature: Temperature | None = None,
        layer_types: LayerTypes = None,
        layer_pattern: tuple[str, ...] | None = None,
        attention: Literal["softmax", "linear"] = "softmax",
        backend: Literal["auto", "reference", "chunked", "sdpa", "flex"] = "auto",
    ) -> None:
        super().__init__(
            spec.vocabulary,
            dim,
            tie_embeddings=tie_embeddings,
            scale_embeddings=scale_embeddings,
            logit_softcap=logit_softcap,
        )
        self.position_augmentation, self.memory_length = position_augmentation, memory_length
        dims = Dims(
            dim,
            heads,
            axes=1,
            length=spec.length,
            depth=depth,
            kv_heads=kv_heads,
            head_dim=head_dim or 0,
        )
        self.add_blocks(
            dims,
            encoding,
            block,
            AttentionOptions(
                causal=True,
                backend=backend,
                attention=attention,
                window=window,
                softcap=softcap,
                sinks=sinks,
                temperature=temperature,
            ),
            layer_types=layer_types,
            layer_pattern=layer_pattern,
        )
        init_weights(self)

    def tokens(
        self,
        inputs: Tensor,
        documents: Tensor | None = None,
        index: Tensor | None = None,
        context: Context | None = None,
    ) -> Tokens:
        """Make the tokens before the first block. The arguments are those of `forward`."""
        seen, count = (0 if context is None else context.seen), inputs.shape[1]
        if index is None and documents is not None and seen:
            problem = "documents that follow remembered tokens need positions; pass index"
            raise OptionError("index", problem)

        # Positions continue those of the context, or start at 0 in each document.
        is_counted = index is None
        if index is None:
            counted = torch.arange(seen, seen + count, device=inputs.device)
            index = counted if documents is None else document_positions(documents)

        x = self.embed_tokens(inputs)  # [B, N, D]
        pos = index[..., None].to(torch.promote_types(x.dtype, torch.float32))  # [1|B, N, 1]
        moved = self.position_augmentation(pos, len(x)) if self.training else pos
        tokens = Tokens.at(x, moved, document=documents, ordered=True)
        if is_counted:
            first = seen if documents is None else 0
            known: tuple[float, float] = (first, first + count - 1)
            if moved is not pos:
                known = self.position_augmentation.widen_range(*known)
            set_known_range(tokens.pos, *known)
        return tokens.replace(consecutive=is_counted and documents is None and moved is pos)

    def forward(
        self,
        inputs: Tensor,
        documents: Tensor | None = None,
        index: Tensor | None = None,
        context: Context | None = None,
        last: int | None = None,
    ) -> Tensor:
        """Compute logits.

        Args:
            inputs: Tokens, int64 [B, N].
            documents: Document numbers, int64 [B, N]. Tokens attend within their document; -1 is
                padding, on either side.
            index: Positions [N] or [B, N] that grow within each document. By default positions
                continue those of the context, or start at 0 in each document.
            context: A `KeyValueCache` or `SegmentMemory` of earlier calls.
            last: Compute logits of only the last `last` tokens.

        Returns:
            Logits [B, N, V], or [B, last, V].

        Raises:
            OptionError: Documents follow tokens of a context and `index` is missing.
        """
        x = self.run_blocks(self.tokens(inputs, documents, index, context), context).x
        return self.logits(x if last is None else x[:, max(x.shape[1] - last, 0) :])
