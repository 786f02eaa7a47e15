"""The protocol of mixers: layers that mix tokens by a state in place of attention."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, cast

import torch
from torch import Tensor, nn

from zoo.attention.chain import Chain
from zoo.attention.encoding import Dims
from zoo.attention.layer import Context, LayerOptions
from zoo.attention.layer_state import LayerState
from zoo.attention.tokens import Tokens, check_rows, concat, fill_padding, take_tokens
from zoo.options import Choice, Choices
from zoo.registry import find


@dataclass(frozen=True)
class MixerStream:
    """The tokens of a call in the order in which a recurrence reads them: padding comes last.

    Attributes:
        x: States [B, N, D], 0 for padding.
        is_real: bool [1|B, N], False for padding; None: there is none.
        segment: Number of the document, counted from that of the last token of earlier calls, int
            [1|B, N]. It never decreases. Padding has the number of the last token. None: all tokens
            continue one document.
        document: Number of the document of the last token that is no padding, int [1|B].
        order: Sequence index of each token, int [1|B, N]; None: unchanged.
    """

    x: Tensor
    is_real: Tensor | None
    segment: Tensor | None
    document: Tensor
    order: Tensor | None

    @classmethod
    def of(cls, tokens: Tokens, past: LayerState | None) -> MixerStream:
        """Order tokens that follow those of a state."""
        x, document, order, is_real = tokens.x, tokens.document, None, None
        before = None if past is None else past.document
        if document is None:
            zero = torch.zeros(1, 1, dtype=torch.long, device=x.device)
            if before is None:
                return cls(x, None, None, zero[:, 0], None)
            document = zero.expand(1, x.shape[1])
        else:
            order = (document < 0).int().argsort(dim=1, stable=True)
            document = document.gather(1, order)
            is_real = document >= 0
            x = take_tokens(x, order).masked_fill(~is_real[..., None], 0)
            document = fill_padding(document, before)
        earlier = document[:, 0] if before is None else before
        joined = concat(earlier[:, None], document)
        segment = (joined[:, 1:] != joined[:, :-1]).cumsum(1)
        return cls(x, is_real, segment, document[:, -1], order)

    def clear_padding(self, values: Tensor) -> Tensor:
        """Set values [B, N, ..] of padding to 0."""
        if self.is_real is None:
            return values
        axes = (1,) * (values.dim() - 2)
        return values.masked_fill(~self.is_real.reshape(*self.is_real.shape, *axes), 0)

    def restore(self, values: Tensor) -> Tensor:
        """Return values [B, N, ..] in the order of the tokens."""
        return values if self.order is None else take_tokens(values, self.order.argsort(1))


class Mixer(nn.Module):
    """The base class of mixers. A block has one in place of its attention.

    A subclass computes `mix` and reads the order of tokens; documents, padding, caches and segment
    memories are the same for all. One that needs more than the order computes `forward`. Class
    attributes are declared facts. Options are keyword-only arguments of `__init__`.

    Args:
        dims: The sizes of the layer.
    """

    name = ""
    """Registered name."""

    uses_encodings = False
    """True if `forward` calls the encodings of its layer. Otherwise those of the model that change
    queries, keys or scores do not reach it."""

    causal_only = True
    """Whether it needs a model with a causal mask."""

    causal = True
    """Whether tokens see only earlier ones. A model without a causal mask sets it to False."""

    projects_heads = False
    """True if it projects heads as attention does. It then takes the options of `block` as second
    argument, and draws its weights where attention would, so that both start from the same."""

    no_export_reason = ""
    """Why torch.export cannot capture it for all batch sizes and lengths under a causal mask. Empty
    if it can."""

    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.dims = dims

    @property
    @abstractmethod
    def output_projection(self) -> nn.Module:
        """The last linear layer, which ends the residual branch."""

    def mix(
        self, stream: MixerStream, past: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Mix the tokens of a call.

        Args:
            stream: The tokens.
            past: The state after earlier calls, by name; empty if there were none. A batch of 1
                stands for all rows.

        Returns:
            The outputs [B, N, D], and the state after the last token that is no padding, tensors
            [B, ...] by name. Tokens of `segment` 0 continue the past, and the state belongs to the
            last segment only.
        """
        raise NotImplementedError

    def measure_state(self, stream: MixerStream, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Measure what a diagnosis shows of a layer without weights.

        Args:
            stream: The tokens that have led to the state, and none before them.
            state: The state after the last token, by name.

        Returns:
            Values [heads] by name of the measure; one value where the layer has no heads.
        """
        return {
            "norm of the state": torch.stack(
                [value.float().square().mean().sqrt() for value in state.values()]
            ).mean(0, keepdim=True)
        }

    def plan(self, tokens: Tokens, chain: Chain, device: str) -> tuple[str, str]:
        """Return what computes this layer on a device type, and the reason, as attention does."""
        return self.name, "a state in place of attention"

    def forward(self, tokens: Tokens, chain: Chain, context: Context) -> Tokens:
        """Return the tokens with the outputs [B, N, D] of the mixer as states.

        Args:
            tokens: Tokens with states [B, N, D].
            chain: The encodings of the layer.
            context: The memory of earlier calls.

        Raises:
            OptionError: The context holds another number of rows.
        """
        layer, count = self.dims.layer, tokens.x.shape[1]
        # A segment memory holds earlier states, from which the state is computed again.
        states = context.extend_states(layer, tokens)
        past = context.state(layer)
        if past is not None:
            for value in past.values.values():
                check_rows(value.flatten(1)[:, :, None], tokens.x[..., :1])
        stream = MixerStream.of(states, past)
        out, values = self.mix(stream, {} if past is None else past.values)
        context.store_state(layer, LayerState(values, stream.document), tokens)
        return tokens.replace(x=stream.restore(out)[:, -count:])


MixerFactory = Annotated[Callable[[Dims, LayerOptions], Mixer], Choices("mixers")]
"""A function of the sizes of a layer and the options of its block that makes its mixer, made from
the entry in a recipe."""


def make_mixer_factory(choice: Choice) -> MixerFactory:
    """Return a factory of a mixer.

    Args:
        choice: Its name and its validated options.
    """
    cls = find("mixers", choice.name)

    def make(dims: Dims, block: LayerOptions) -> Mixer:
        sizes = (dims, block) if cls.projects_heads else (dims,)
        return cast(Mixer, cls(*sizes, **choice.options))

    return make


def describe_facts(mixer: type[Mixer]) -> dict[str, str]:
    """Return the declared facts of a mixer, {fact: description}."""
    return {
        "uses_encodings": "yes" if mixer.uses_encodings else "no",
        "causal_only": "yes" if mixer.causal_only else "no",
        "projects_heads": "yes" if mixer.projects_heads else "no",
        "export": mixer.no_export_reason or "any batch size and length",
    }
