"""A stack of attention layers with residuals, the model on which most laws are checked.

It calls every hook of an encoding, and its caches and memories have more than one layer.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from zoo.attention.backends.dispatch import find_obstacle
from zoo.attention.call import AttentionCall
from zoo.attention.chain import Chain
from zoo.attention.layer import Context, SelfAttention
from zoo.attention.tokens import Tokens
from zoo.laws.case import Case
from zoo.laws.law import require


class AttentionStack(nn.Module):
    """Attention layers with residuals, in float64 and evaluation mode.

    Encodings that declare `shared` are shared between layers.

    Args:
        case: The encodings.
        causal: Whether attention has a causal mask.
        layers: Number of layers.
        window: Number of tokens in the sliding window, or None.
    """

    def __init__(
        self, case: Case, *, causal: bool, layers: int = 2, window: int | None = None
    ) -> None:
        super().__init__()
        # Each layer has its own encodings, except those that layers share.
        chains = [Chain.of(case.build(layer)) for layer in range(layers)]
        for chain in chains[1:]:
            for name, link in chains[0].named_children():
                if link.shared:
                    chain.add_module(name, link)
        self.chains, self.causal = nn.ModuleList(chains), causal
        self.layers = nn.ModuleList(
            SelfAttention(
                chain.dims,
                causal=causal,
                window=window,
                softcap=case.softcap,
                sinks=case.sinks,
                temperature=case.temperature,
            )
            for chain in chains
        )
        self.double().eval()
        perturb(self)
        self.declare_consecutive = True

    def forward(
        self,
        x: Tensor,
        pos: Tensor,
        has_position: Tensor | None = None,
        document: Tensor | None = None,
        context: Context | None = None,
    ) -> Tensor:
        return self.run(self.tokens(x, pos, has_position, document), context)

    def run(self, tokens: Tokens, context: Context | None = None) -> Tensor:
        """Compute the output [B, N, D] of tokens."""
        tokens = self.first.embed(tokens)
        # As in a transformer block, without norms and MLP: x = x + attention(x).
        for layer, chain in zip(self.layers, self.chains, strict=True):
            assert isinstance(chain, Chain)
            after, extra = layer(tokens, chain, context or Context())
            after = after.replace(x=tokens.x + after.x)
            tokens = after if extra is None else chain.after_attention(after, extra)
        return tokens.x

    @property
    def first(self) -> Chain:
        """The encoding of the first layer."""
        chain = self.chains[0]
        assert isinstance(chain, Chain)
        return chain

    def tokens(
        self, x: Tensor, pos: Tensor, has_position: Tensor | None, document: Tensor | None
    ) -> Tokens:
        """Make tokens as a language model does if causal, or as an image model otherwise."""
        # A meta tensor has no values to compare; the shortcut is then not declared.
        ordered = self.causal and pos.shape[-1] == 1
        tokens = Tokens.at(x, pos, has_position, document, ordered=ordered)
        even = document is None and not pos.is_meta and bool((tokens.pos.diff(dim=1) == 1).all())
        return tokens.replace(consecutive=ordered and even and self.declare_consecutive)

    def call(
        self,
        x: Tensor,
        pos: Tensor,
        has_position: Tensor | None = None,
        document: Tensor | None = None,
        query_index: Tensor | None = None,
    ) -> AttentionCall:
        """Describe the attention of the first layer, for all queries or for chosen ones."""
        tokens = self.first.embed(self.tokens(x, pos, has_position, document))
        layer = self.layers[0]
        assert isinstance(layer, SelfAttention)
        return layer.describe(tokens, self.first, Context(), query_index)[1]

    def supports(self, backend: str, x: Tensor, pos: Tensor) -> bool:
        """Return whether one of PyTorch's fused kernels can compute the attention."""
        return not find_obstacle(self.call(x, pos), backend)

    def results(self, x: Tensor, *where: Tensor | None, backend: str = "auto") -> dict[str, Tensor]:
        """Compute the output, and its gradients with respect to x and all parameters."""
        for layer in self.layers:
            assert isinstance(layer, SelfAttention)
            layer.backend = backend
        # Distinct weights of outputs, so that no gradients cancel.
        out = self(x, *where)
        weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)

        leaves = {"states": x, **dict(self.named_parameters())}
        total = (out * weight).sum()
        gradients = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)

        results = {"the output": out}
        for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True):
            filled = torch.zeros_like(leaf) if gradient is None else gradient
            results[f"the gradient of {name}"] = filled
        return results

    def in_parts(
        self, context: Context, x: Tensor, pos: Tensor, *counts: int, document: Tensor | None = None
    ) -> Tensor:
        """Compute the output of tokens in calls of `counts` tokens that share a context."""
        documents = [None] * len(counts) if document is None else document.split(counts, dim=1)
        parts = zip(x.split(counts, dim=1), pos.split(counts), documents, strict=True)
        outputs = [self(part, at, document=ids, context=context) for part, at, ids in parts]
        return torch.cat(outputs, dim=1)

    def require_finite(self) -> None:
        """Check that all gradients are finite.

        Raises:
            LawBroken: A gradient is infinite or NaN.
        """
        for name, parameter in self.named_parameters():
            finite = parameter.grad is None or parameter.grad.isfinite().all()
            require(finite, f"the gradient of {name} is not finite")


@torch.no_grad()
def perturb(modules: nn.Module) -> None:
    """Draw random values for parameters that start at zero, which would hide faults."""
    for parameter in modules.parameters():
        if not parameter.any():
            parameter.normal_(std=0.5)
