"""Causal language model in the style of GPT-2 (Radford et al. 2019).

It reads texts of any length that its encoding allows.
"""

from __future__ import annotations

from typing import Annotated, Unpack

import torch
from torch import Tensor

from zoo.attention.coordinates import set_known_range
from zoo.attention.layer import Context
from zoo.attention.tokens import Tokens, document_positions
from zoo.data.spec import TextSpec
from zoo.errors import OptionError
from zoo.models.embedding import LanguageModel, LanguageOptions, init_weights
from zoo.models.transformer import Softcap
from zoo.options import Between, Count
from zoo.registry import register


@register
class Decoder(LanguageModel):
    """Tokens [B, N] -> logits [B, N, V] of the next token.

    Weights are initialized as in GPT-2.

    Args:
        spec: Vocabulary and length of the texts.
        head_dim: Head dim K; dim divided by heads by default.
        logit_softcap: Bound c of the logits z, which become c tanh(z / c) (Gemma 2,
            arXiv:2408.00118). None: no bound.
        memory_length: Number of earlier tokens whose states are remembered from batch to batch, in
            training and evaluation (Transformer-XL, arXiv:1901.02860). Each row of a batch must
            then continue the same row of the batch before.
        **options: Those of `LanguageModel` and `Transformer`. With `window`, a token attends to the
            last `window` tokens, including itself.

    Raises:
        OptionError: An option does not fit the others.
    """

    def __init__(
        self,
        spec: TextSpec,
        *,
        head_dim: Count | None = None,
        logit_softcap: Softcap | None = None,
        memory_length: Annotated[int, Between(0)] = 0,
        **options: Unpack[LanguageOptions],
    ) -> None:
        super().__init__(spec.vocabulary, logit_softcap=logit_softcap, **options)
        self.memory_length = memory_length
        self.add_blocks(
            axes=1,
            length=spec.length,
            head_dim=head_dim,
            causal=True,
            window=self.window,
            temperature=self.temperature,
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
            message = "documents that follow remembered tokens need positions; pass index"
            raise OptionError("index", message)

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
            start = seen if documents is None else 0
            bounds: tuple[float, float] = (start, start + count - 1)
            if moved is not pos:
                bounds = self.position_augmentation.widen_range(*bounds)
            set_known_range(tokens.pos, *bounds)
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
