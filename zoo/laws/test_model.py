"""Two attention layers with residuals, as a transformer has them: what most laws look at.

So all that an encoding embeds, notes, turns, describes and takes back is under the law, and so are caches and memories of
more than one layer.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from zoo.attention.backends.dispatch import FULL_ROW_FIELDS
from zoo.attention.call import AttentionCall
from zoo.attention.chain import Chain
from zoo.attention.kv_cache import Context
from zoo.attention.layer import SelfAttention
from zoo.attention.tokens import Tokens
from zoo.laws.case import Case
from zoo.laws.law import require


class Stack(nn.Module):
    """Attention layers with residuals; links are shared between them or not, as they declare."""

    def __init__(
        self,
        member: Case,
        *,
        causal: bool,
        backend: str = "auto",
        layers: int = 2,
        window: int | None = None,
    ) -> None:
        super().__init__()
        chains = [Chain.of(member.make(layer)) for layer in range(layers)]
        for chain in chains[1:]:
            for name, link in chains[0].named_children():
                if link.shared:
                    chain.add_module(name, link)
        self.chains, self.causal = nn.ModuleList(chains), causal
        self.layers = nn.ModuleList(
            SelfAttention(chain.dims, causal=causal, backend=backend, window=window)
            for chain in chains
        )
        self.double().eval()
        perturb(self.chains)
        self.even = True  # tokens that are one place apart say so

    def forward(
        self,
        x: Tensor,
        pos: Tensor,
        placed: Tensor | None = None,
        document: Tensor | None = None,
        context: Context | None = None,
    ) -> Tensor:
        tokens = self.first.embed(self.tokens(x, pos, placed, document))
        for layer, chain in zip(self.layers, self.chains, strict=True):
            assert isinstance(chain, Chain)
            after, riders = layer(tokens, chain, context or Context())
            after = after.replace(x=tokens.x + after.x)
            tokens = after if riders is None else chain.after_attention(after, riders)
        return tokens.x

    @property
    def first(self) -> Chain:
        """The encoding of the first layer."""
        chain = self.chains[0]
        assert isinstance(chain, Chain)
        return chain

    def tokens(
        self, x: Tensor, pos: Tensor, placed: Tensor | None, document: Tensor | None
    ) -> Tokens:
        """Tokens as a model of text makes them under a causal mask, or a model of images."""
        tokens = Tokens.at(x, pos, placed, document, ordered=self.causal and pos.shape[-1] == 1)
        even = document is None and not pos.is_meta and bool((tokens.pos.diff(dim=1) == 1).all())
        return tokens.replace(consecutive=tokens.ordered and even and self.even)

    def call(
        self,
        x: Tensor,
        pos: Tensor,
        placed: Tensor | None = None,
        document: Tensor | None = None,
        slots: Tensor | None = None,
    ) -> AttentionCall:
        """The attention call of the first layer, of all queries or of those in `slots`."""
        tokens = self.first.embed(self.tokens(x, pos, placed, document))
        layer = self.layers[0]
        assert isinstance(layer, SelfAttention)
        return layer.describe(tokens, self.first, Context(), slots)[1]

    def fused(self, x: Tensor, pos: Tensor) -> bool:
        """Whether PyTorch's kernels can compute this."""
        call = self.call(x, pos)
        return all(getattr(call, field) is None for field in FULL_ROW_FIELDS)

    def results(self, x: Tensor, *where: Tensor | None, backend: str = "auto") -> dict[str, Tensor]:
        """Output, and gradients of x and all parameters, by an interpreter."""
        for layer in self.layers:
            assert isinstance(layer, SelfAttention)
            layer.backend = backend
        return self.differentiated(self(x, *where), x)

    def differentiated(self, out: Tensor, x: Tensor) -> dict[str, Tensor]:
        """An output, and its gradients: zeros for what does not reach it."""
        weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
        leaves = {"the gradient of the states": x}
        leaves |= {
            f"the gradient of {name}": parameter for name, parameter in self.named_parameters()
        }
        gradients = torch.autograd.grad(
            (out * weight).sum(), list(leaves.values()), allow_unused=True
        )
        found = zip(leaves.items(), gradients, strict=True)
        return {
            "the output": out,
            **{n: torch.zeros_like(one) if g is None else g for (n, one), g in found},
        }

    def in_parts(
        self, context: Context, x: Tensor, pos: Tensor, *counts: int, document: Tensor | None = None
    ) -> Tensor:
        """The output of tokens that come so many at a time, with what the context remembers of those before."""
        documents = [None] * len(counts) if document is None else document.split(counts, dim=1)
        parts = zip(x.split(counts, dim=1), pos.split(counts), documents, strict=True)
        outs = [
            self(part, place, document=document, context=context) for part, place, document in parts
        ]
        return torch.cat(outs, dim=1)

    def require_finite(self) -> None:
        """Raises Broken where a gradient is infinite or not a number."""
        for name, one in self.named_parameters():
            require(
                one.grad is None or one.grad.isfinite().all(),
                f"the gradient of {name} is not finite",
            )


@torch.no_grad()
def perturb(modules: nn.Module) -> None:
    """Move parameters that are zero at first, so that nothing hides behind them."""
    for parameter in modules.parameters():
        if not parameter.any():
            parameter.normal_(std=0.5)
