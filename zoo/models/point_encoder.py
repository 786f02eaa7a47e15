"""Transformer for sets of points at real coordinates, such as series of irregular time stamps.

A set has no order, so only the encoding tells where, or when, a point is (Set Transformer, Lee et
al. 2019, arXiv:1810.00825).
"""

from __future__ import annotations

from typing import Literal, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attention.tokens import Tokens, check_tensor
from zoo.data.spec import PointSpec
from zoo.models.transformer import Transformer, TransformerOptions
from zoo.registry import register


@register
class PointEncoder(Transformer):
    """Points with features [B, N, F] at coordinates [B, N, P] -> class logits, or numbers, [B, T].

    Features are embedded by a linear layer. The output is predicted from the mean of all points
    except padding, or from the CLS token. Encodings see coordinates in the units of the data, to
    which no convention applies. Weights are initialized as in `vit`.

    Args:
        spec: Features, axes, and classes or numbers to predict.
        pool: Predict from the mean of the points, or from a CLS token, which has no position.
        **options: Those of `Transformer`.
    """

    def __init__(
        self,
        spec: PointSpec,
        *,
        pool: Literal["mean", "class"] = "mean",
        **options: Unpack[TransformerOptions],
    ) -> None:
        super().__init__(**options)
        dim = options["dim"]
        self.features, self.axes = spec.features, spec.axes
        self.feature_embed = nn.Linear(spec.features, dim)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim)) if pool == "class" else None
        self.add_blocks(axes=spec.axes, points=True)
        self.head = nn.Linear(dim, spec.outputs)
        for module in self.blocks.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        # A head of zeros predicts all classes alike, or the mean of the training data.
        for parameter in (self.feature_embed.bias, self.head.weight, self.head.bias):
            nn.init.zeros_(parameter)

    def tokens(self, x: Tensor, pos: Tensor, mask: Tensor | None = None) -> Tokens:
        """Make the tokens of points; each sample is one document, and padding belongs to none."""
        document = None
        if mask is not None:
            # What stands in padding reaches nothing, not even as 0 * NaN.
            x, pos = (values.masked_fill(~mask[..., None], 0) for values in (x, pos))
            document = mask.long() - 1  # [B, N]
        states = self.feature_embed(x)  # [B, N, D]
        if self.cls_token is None:
            return Tokens.at(states, pos, document=document)

        # Prepend the CLS token, with a placeholder for its coordinates.
        cls = self.cls_token.to(states.dtype).expand(states.shape[0], -1, -1)
        states, pos = torch.cat([cls, states], dim=1), F.pad(pos, (0, 0, 1, 0))
        if document is not None:
            document = F.pad(document, (1, 0))
        has_position = torch.arange(states.shape[1], device=states.device) >= 1
        return Tokens.at(states, pos, has_position, document)

    def forward(self, x: Tensor, pos: Tensor, mask: Tensor | None = None) -> Tensor:
        """Compute logits of classes, or standardized predictions of numbers.

        Args:
            x: Features [B, N, F].
            pos: Coordinates [B, N, P], in the units of the data.
            mask: Bool [B, N], False for padding. None: there is none.

        Returns:
            Outputs [B, classes] or [B, T].
        """
        check_tensor("x", x, [None, None, self.features], kind="floating")
        check_tensor("pos", pos, [*x.shape[:2], self.axes], kind="floating")
        states = self.run_blocks(self.tokens(x, pos, mask)).x
        if self.cls_token is not None:
            return self.head(states[:, 0])
        if mask is None:
            return self.head(states.mean(1))
        # The mean over real points, as a product with their weights.
        shares = mask / mask.sum(1, keepdim=True).clamp(min=1)  # [B, N]
        return self.head((shares.to(states.dtype)[:, None] @ states)[:, 0])
