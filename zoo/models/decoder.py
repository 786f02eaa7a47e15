"""Causal language model (Radford et al. 2019, GPT-2), for texts of any length that its encoding allows."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from zoo.attention.coordinates import PositionAugmentation
from zoo.attention.encoding import Dims, EncodingFactories
from zoo.attention.kv_cache import Context
from zoo.attention.tokens import Tokens
from zoo.data.spec import TextSpec
from zoo.errors import OptionError
from zoo.models.embedding import TokenEmbedding, document_positions, init_weights
from zoo.models.transformer import BlockOptions, Transformer
from zoo.registry import Between, Count, register


@register
class Decoder(nn.Module):
    """Tokens [B, N] -> logits [B, N, V] of the token after each.

    Weights start as those of GPT-2. Fewer `kv_heads` than heads are shared by as many query heads each. `tied` predicts
    with the table that is read, `scaled` multiplies what is read by sqrt(dim). `memory` is the number of tokens before
    those of a batch that training and evaluation remember (Transformer-XL, arXiv:1901.02860), given that batches come in
    the order of the text, row by row. A token sees the last `window` tokens, itself among them (None: all), by the sums of
    linear attention if `kernel` is elu.
    """

    def __init__(
        self,
        samples: TextSpec,
        *,
        dim: Count,
        depth: Count,
        heads: Count,
        kv_heads: Count | None = None,
        encoding: EncodingFactories,
        position_augmentation: PositionAugmentation = PositionAugmentation(),
        block: BlockOptions = BlockOptions(),
        tie_embeddings: bool = True,
        scale_embeddings: bool = False,
        memory_length: Annotated[int, Between(0)] = 0,
        window: Count | None = None,
        attention: Literal["softmax", "linear"] = "softmax",
        backend: Literal["auto", "reference", "chunked", "sdpa", "flex"] = "auto",
    ) -> None:
        super().__init__()
        self.perturbation, self.memory_length = position_augmentation, memory_length
        self.words = TokenEmbedding(
            samples.vocabulary,
            dim,
            tie_embeddings=tie_embeddings,
            scale_embeddings=scale_embeddings,
        )
        dims = Dims(dim, heads, axes=1, length=samples.length, depth=depth, kv_heads=kv_heads)
        self.trunk = Transformer(
            dims, encoding, block, causal=True, backend=backend, window=window, attention=attention
        )
        for link in self.trunk.chains[0]:
            if link.coordinates != "index":
                placed = f"{link.name} places tokens by the final length ({link.coordinates} coordinates)"
                remedy = "which a causal model does not know; add coordinates: index to its entry"
                raise OptionError("encoding", f"{placed}, {remedy}")
        init_weights(self.trunk)

    def tokens(
        self,
        inputs: Tensor,
        documents: Tensor | None = None,
        index: Tensor | None = None,
        context: Context | None = None,
    ) -> Tokens:
        """Tokens before the first block; arguments as in `forward`."""
        seen, count = (0 if context is None else context.seen), inputs.shape[1]
        if index is None and documents is not None and seen:
            raise OptionError(
                "index", "documents that follow remembered tokens need their places; pass index"
            )
        consecutive = index is None and documents is None
        if index is None:
            later = torch.arange(seen, seen + count, device=inputs.device)
            index = later if documents is None else document_positions(documents)
        x = self.words.read(inputs)
        index = index[..., None].to(torch.promote_types(x.dtype, torch.float32))  # [1|B, N, 1]
        moved = self.perturbation(index, len(x)) if self.training else index
        tokens = Tokens.at(x, moved, document=documents, ordered=True)
        return tokens.replace(consecutive=consecutive and moved is index)

    def forward(
        self,
        inputs: Tensor,
        documents: Tensor | None = None,
        index: Tensor | None = None,
        context: Context | None = None,
        last: int | None = None,
    ) -> Tensor:
        """Logits [B, N, V] of inputs int64 [B, N].

        Tokens see only those of their own number in `documents` int64 [B, N]; -1 is padding, on either side. `index` [N]
        or [B, N] are places that grow within each document; by default the context's tokens are counted on, or each
        document from 0. With `last` only so many last tokens have their logits made. Raises OptionError where documents follow
        tokens of a context and `index` is missing.
        """
        x = self.trunk(self.tokens(inputs, documents, index, context), context).x
        return self.words.logits(x if last is None else x[:, max(x.shape[1] - last, 0) :])
