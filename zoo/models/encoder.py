"""Bidirectional language model in the style of BERT (Devlin et al. 2019, arXiv:1810.04805).

It predicts masked tokens or the class of a document.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attention.coordinates import set_known_range
from zoo.attention.tokens import Tokens, document_lengths, document_positions
from zoo.data.spec import TextClassificationSpec, TextSpec
from zoo.models.embedding import INIT_STD, LanguageModel, LanguageOptions, init_weights
from zoo.registry import register


@register
class Encoder(LanguageModel):
    """Tokens [B, N] -> logits [B, N, V] of each token, or [B, classes] for texts with labels.

    Token V, `mask_token`, replaces hidden tokens. A classifier has it too, so that it can start
    from a masked language model. The class is predicted from the CLS token, or from the mean of all
    tokens except padding. Weights are initialized as in GPT-2.

    Args:
        spec: Vocabulary and length of the texts, and their classes if they have labels.
        cls_token: Prepend a learned token without a position. It belongs to the last document of
            its row; without classes its output is dropped.
        **options: Those of `LanguageModel` and `Transformer`. With `window`, a token attends to
            tokens less than `window` away and to the CLS token, which attends to all.
    """

    def __init__(
        self,
        spec: TextSpec | TextClassificationSpec,
        *,
        cls_token: bool = False,
        **options: Unpack[LanguageOptions],
    ) -> None:
        classes, dim = spec.class_count, options["dim"]
        if classes is not None:
            # A classifier predicts no tokens and needs no head for them.
            options["tie_embeddings"] = True
        super().__init__(spec.vocabulary, extra_rows=1, **options)
        self.mask_token = len(spec.vocabulary)
        self.head = None if classes is None else nn.Linear(dim, classes)
        self.cls_token = nn.Parameter(torch.randn(1, 1, dim) * INIT_STD) if cls_token else None
        self.add_blocks(
            axes=1, length=spec.length, window=self.window, temperature=self.temperature
        )
        init_weights(self)
        # A head of zeros gives uniform predictions at the first step.
        if self.head is not None:
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def tokens(self, inputs: Tensor, documents: Tensor | None = None) -> Tokens:
        """Make the tokens before the first block; the grid size is the length of a document."""
        x = self.embed_tokens(inputs)  # [B, N, D]
        dtype = torch.promote_types(x.dtype, torch.float32)
        if documents is None:
            index = torch.arange(inputs.shape[1], device=x.device)[:, None].to(dtype)  # [N, 1]
            size = index.new_full((1, 1, 1), inputs.shape[1])
        else:
            index = document_positions(documents)[..., None].to(dtype)  # [B, N, 1]
            size = document_lengths(documents)[..., None].to(dtype)  # [B, N, 1]
        bounds: tuple[float, float] = (0, inputs.shape[1] - 1)
        if self.training and not self.position_augmentation.is_identity:
            index = self.position_augmentation(index, len(x))
            bounds = self.position_augmentation.widen_range(*bounds)
        if self.cls_token is None:
            tokens = Tokens.at(x, index, document=documents).replace(grid_size=size)
            set_known_range(tokens.pos, *bounds)
            return tokens

        # Prepend the CLS token, with placeholders for its position and size.
        x = torch.cat([self.cls_token.to(x.dtype).expand(x.shape[0], -1, -1), x], dim=1)
        index = F.pad(index, (0, 0, 1, 0))
        if documents is not None:
            size = F.pad(size, (0, 0, 1, 0), value=1.0)
            documents = torch.cat([documents.amax(1, keepdim=True), documents], dim=1)
        has_position = torch.arange(x.shape[1], device=x.device) >= 1
        tokens = Tokens.at(x, index, has_position, documents).replace(grid_size=size)
        set_known_range(tokens.pos, min(0, bounds[0]), bounds[1])
        return tokens

    def forward(self, inputs: Tensor, documents: Tensor | None = None) -> Tensor:
        """Compute logits.

        Args:
            inputs: Tokens, int64 [B, N]. For a classifier each row is a document, with -1 as
                padding.
            documents: Document numbers, int64 [B, N]. Tokens attend within their document; -1 is
                padding. A classifier ignores it.

        Returns:
            Logits [B, N, V], or [B, classes] for a classifier.
        """
        if self.head is None:
            x = self.run_blocks(self.tokens(inputs, documents)).x
            return self.logits(x if self.cls_token is None else x[:, 1:])

        # Each row is one document, number 0; padding gets the number -1 and an arbitrary token.
        is_real = inputs >= 0  # [B, N]
        x = self.run_blocks(self.tokens(inputs.clamp(min=0), is_real.long() - 1)).x
        if self.cls_token is not None:
            return self.head(x[:, 0])
        # The mean over real tokens, as a product with their weights.
        shares = is_real / is_real.sum(1, keepdim=True).clamp(min=1)  # [B, N]
        return self.head((shares.to(x.dtype)[:, None] @ x)[:, 0])
