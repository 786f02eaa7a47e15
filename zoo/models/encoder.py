"""Bidirectional language model (Devlin et al. 2019, arXiv:1810.04805, BERT), for masked tokens or the class of a text."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attention.coordinates import PositionAugmentation
from zoo.attention.encoding import Dims, EncodingFactories
from zoo.attention.tokens import Tokens
from zoo.data.spec import TextClassificationSpec, TextSpec
from zoo.models.embedding import (
    INIT_STD,
    TokenEmbedding,
    document_lengths,
    document_positions,
    init_weights,
)
from zoo.models.transformer import BlockOptions, Transformer
from zoo.registry import Count, register


@register
class Encoder(nn.Module):
    """Tokens [B, N] -> logits [B, N, V] of the token at each place; of passages, which have labels, -> logits [B, classes].

    Number V, `mask`, stands for a hidden token; a model of passages has it too, so that it can begin as one of masked tokens.
    Its class is read off the class token, or else off the mean over the tokens that are no padding.

    Weights start as those of GPT-2. `kv_heads`, `tied` and `scaled` are as in the decoder. `class_token` puts a learned
    token without a place before the text; it belongs to the last document of its row, and its output is dropped where there
    is no class. A token sees those less than `window` tokens away (None: all) and the class token, which sees all.
    """

    def __init__(
        self,
        samples: TextSpec | TextClassificationSpec,
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
        cls_token: bool = False,
        window: Count | None = None,
        attention: Literal["softmax", "linear"] = "softmax",
        backend: Literal["auto", "reference", "chunked", "sdpa", "flex"] = "auto",
    ) -> None:
        super().__init__()
        self.perturbation, self.mask = position_augmentation, len(samples.vocabulary)
        labelled = isinstance(
            samples, TextClassificationSpec
        )  # then words are only read, which takes no table to predict with
        self.words = TokenEmbedding(
            samples.vocabulary,
            dim,
            tie_embeddings=tie_embeddings or labelled,
            scale_embeddings=scale_embeddings,
            extra=1,
        )
        self.head = (
            nn.Linear(dim, samples.classes) if isinstance(samples, TextClassificationSpec) else None
        )
        self.cls_token = nn.Parameter(torch.randn(1, 1, dim) * INIT_STD) if cls_token else None
        dims = Dims(dim, heads, axes=1, length=samples.length, depth=depth, kv_heads=kv_heads)
        self.trunk = Transformer(
            dims, encoding, block, backend=backend, window=window, attention=attention
        )
        init_weights(self.trunk)
        if self.head is not None:
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def tokens(self, inputs: Tensor, documents: Tensor | None = None) -> Tokens:
        """Tokens before the first block. The extent of a token is the length of its document."""
        x = self.words.read(inputs)
        slots = (
            torch.arange(inputs.shape[1], device=x.device)
            if documents is None
            else document_positions(documents)
        )
        index = slots[..., None].to(torch.promote_types(x.dtype, torch.float32))  # [1|B, N, 1]
        extent = index.new_full((1, 1, 1), inputs.shape[1])
        if documents is not None:
            extent = document_lengths(documents)[..., None].to(index.dtype)  # [B, N, 1]
        if self.training:
            index = self.perturbation(index, len(x))
        placed = None
        if self.cls_token is not None:
            x = torch.cat([self.cls_token.to(x.dtype).expand(len(x), -1, -1), x], dim=1)
            index = F.pad(index, (0, 0, 1, 0))
            extent = extent if documents is None else F.pad(extent, (0, 0, 1, 0), value=1.0)
            placed = torch.arange(x.shape[1], device=x.device) >= 1
            if documents is not None:
                documents = torch.cat([documents.amax(1, keepdim=True), documents], dim=1)
        return Tokens.at(x, index, placed, documents).replace(grid_size=extent)

    def forward(self, inputs: Tensor, documents: Tensor | None = None) -> Tensor:
        """Logits [B, N, V] of inputs int64 [B, N]; tokens see only those of their own number in `documents`, -1 is padding.

        Of passages [B, classes]; there -1 in `inputs` is padding, and each row is a document.
        """
        if self.head is None:
            x = self.trunk(self.tokens(inputs, documents)).x
            return self.words.logits(x if self.cls_token is None else x[:, 1:])
        real = inputs >= 0  # [B, N]
        x = self.trunk(self.tokens(inputs.clamp(min=0), real.long() - 1)).x
        if self.cls_token is not None:
            return self.head(x[:, 0])
        shares = real / real.sum(1, keepdim=True).clamp(min=1)  # [B, N]
        return self.head((shares.to(x.dtype)[:, None] @ x)[:, 0])
