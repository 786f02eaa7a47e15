"""Several encodings in order as one, and what holds for all of them, done once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from zoo.attention import coordinates
from zoo.attention.call import AttentionCall, Span, TransformScores, multiply_bias
from zoo.attention.encoding import Dims, Encoding
from zoo.attention.tokens import Tokens, pick
from zoo.errors import OptionError
from zoo.reporting.panel import Panel


def placed(link: Encoding, tokens: Tokens) -> Tokens:
    """The tokens as a link sees them: coordinates under its convention; what has no place stands at the origin."""
    seen = coordinates.apply_convention(tokens, link.coordinates, link.dims.length)  # type: ignore[arg-type]
    if tokens.has_position is None:
        return seen
    return seen.replace(pos=torch.where(tokens.has_position[..., None], seen.pos, 0.0))


def added(link: Encoding, old: Tokens, new: Tokens) -> Tokens:
    """Tokens as a link leaves them, with the state that they had where they have no place."""
    if new.x is old.x or link.handles_special_tokens or old.has_position is None:
        return new
    return new.replace(x=torch.where(old.has_position[..., None], new.x, old.x))


def turned(link: Encoding, old: Tensor, new: Tensor, tokens: Tokens) -> Tensor:
    """Heads [B, H, N, K] as a link leaves them: unchanged where a token has no place."""
    if (
        new is old
        or link.handles_special_tokens
        or link.identity_at_zero
        or tokens.has_position is None
    ):
        return new
    return torch.where(tokens.has_position[:, None, :, None], new, old)


def confined(old: AttentionCall, new: AttentionCall) -> AttentionCall:
    """The new terms with all that a link added confined to pairs of tokens that have a place."""
    rows, columns = new.queries.has_position, new.keys.has_position
    if rows is None or columns is None or new is old:
        return new

    def both(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return pick(rows, b, i) & pick(columns, b, j)

    def rescored(rescore: TransformScores) -> TransformScores:
        absorbed = _without(old, new)

        def confined(scores: Tensor, visible: Tensor, span: Span) -> Tensor:
            bias = absorbed.sum_biases(span)
            left = scores if bias is None else scores + bias
            return torch.where(new.evaluate(both, span), rescore(scores, visible, span), left)

        return confined

    def masked(side: Tensor, placed: Tensor) -> Tensor:  # [1|B, 1|H, N, R]
        return side * placed[:, None, :, None]

    def factored(factor: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return masked(factor[0], rows), masked(factor[1], columns)

    known = _parts(old)
    readout = new.extra_output
    changes: dict[str, object] = {
        "biases": tuple(b if id(b) in known else multiply_bias(b, both) for b in new.biases),
        "low_rank_biases": tuple(f if id(f) in known else factored(f) for f in new.low_rank_biases),
    }
    if new.transform_scores is not None and new.transform_scores is not old.transform_scores:
        changes["transform_scores"] = rescored(new.transform_scores)
    if readout is not None and readout is not old.extra_output:
        changes["extra_output"] = lambda weights, span: readout(
            weights * new.evaluate(both, span), span
        )
    return new.replace(**changes)


def _parts(call: AttentionCall) -> set[int]:
    """The identities of biases and factors."""
    return {id(part) for part in (*call.biases, *call.low_rank_biases)}


def _without(old: AttentionCall, new: AttentionCall) -> AttentionCall:
    """The old terms with only those biases and factors that the new ones no longer have."""
    kept = _parts(new)
    return old.replace(
        biases=tuple(one for one in old.biases if id(one) not in kept),
        low_rank_biases=tuple(one for one in old.low_rank_biases if id(one) not in kept),
    )


EXCLUSIVE = ("transform_scores", "normalize", "extra_output", "extra_values")


class Chain(Encoding):
    """Several encodings, applied in order as one.

    Each encoding sees coordinates under its own convention. Tokens without a position are neither
    transformed nor biased, unless an encoding declares that it handles them.

    Args:
        dims: The sizes of the model.
        links: The encodings by name, in order.

    Raises:
        OptionError: Two encodings do not go together.
    """

    def __init__(self, dims: Dims, links: Mapping[str, Encoding]) -> None:
        nn.Module.__init__(self)
        self.dims = dims
        for name, link in links.items():
            self.add_module(name, link)
        self.settling = [
            n
            for n, link in links.items()
            if type(link).update_cached_keys is not Encoding.update_cached_keys
        ]
        turning = [n for n, link in links.items() if n in self.settling or _turns(link)]
        if len(turning) > 1:
            raise OptionError(
                "encoding", f"{' and '.join(turning)} both turn queries and keys; list one of them"
            )
        self.shared = all(link.shared for link in self)
        self.shift_invariant = all(link.shift_invariant for link in self)
        self.causal_only = any(link.causal_only for link in self)
        self.needs_full_sequence = any(link.needs_full_sequence for link in self)
        self.lookback = max((link.lookback for link in self), default=0)
        self.axes = (dims.axes,)
        self.handles_special_tokens = True  # seen to here, link by link
        self.zero_gradient = tuple(
            f"{n}.{parameter}" for n, link in links.items() for parameter in link.zero_gradient
        )

    def __iter__(self) -> Iterator[Encoding]:
        return iter(self._modules.values())  # type: ignore[arg-type]

    @classmethod
    def of(cls, encoding: Encoding) -> Chain:
        """The encoding itself if it is a chain, else a chain of one."""
        return (
            encoding
            if isinstance(encoding, Chain)
            else cls(encoding.dims, {encoding.name or "encoding": encoding})
        )

    def embed(self, tokens: Tokens) -> Tokens:
        for link in self:
            tokens = added(link, tokens, link.embed(placed(link, tokens)))
        return tokens

    def prepare(self, tokens: Tokens) -> Tokens:
        for link in self:
            tokens = added(link, tokens, link.prepare(placed(link, tokens)))
        return tokens

    def transform_query(self, q: Tensor, tokens: Tokens) -> Tensor:
        for link in self:
            q = turned(link, q, link.transform_query(q, placed(link, tokens)), tokens)
        return q

    def transform_key(self, k: Tensor, tokens: Tokens) -> Tensor:
        for link in self:
            k = turned(link, k, link.transform_key(k, placed(link, tokens)), tokens)
        return k

    def update_cached_keys(self, k: Tensor, tokens: Tokens) -> tuple[Tensor, Tokens]:
        for link in self:
            k, tokens = link.update_cached_keys(k, tokens)
        return k, tokens

    def modify(self, call: AttentionCall) -> AttentionCall:
        for link in self:
            old = call.replace(queries=placed(link, call.queries), keys=placed(link, call.keys))
            new = link.modify(old)
            for field in EXCLUSIVE:
                if getattr(old, field) is not None and getattr(new, field) is not getattr(
                    old, field
                ):
                    raise OptionError(
                        "encoding",
                        f"{link.name} and a link before it both write {field}; list one of them",
                    )
            if old.transform_scores is not None and (len(new.biases), len(new.low_rank_biases)) != (
                len(old.biases),
                len(old.low_rank_biases),
            ):
                raise OptionError(
                    "encoding",
                    f"{link.name} adds a bias to scores that a link before it rescores; list it first",
                )
            self._check_products(link, old, new)
            call = new if link.handles_special_tokens else confined(old, new)
        return call

    def after_attention(self, tokens: Tokens, riders: Tensor) -> Tokens:
        for link in self:
            tokens = link.after_attention(placed(link, tokens), riders)
        return tokens

    def panels(self, call: AttentionCall) -> Iterable[Panel]:
        for link in self:
            seen = call.replace(queries=placed(link, call.queries), keys=placed(link, call.keys))
            for panel in link.panels(seen):
                yield replace(panel, title=f"{link.name}: {panel.title}")

    def _check_products(self, link: Encoding, old: AttentionCall, new: AttentionCall) -> None:
        """Refuses what would tell a kept key that was changed from one that its link has yet to change."""
        links = list(self)
        for name in self.settling:
            if link.consumes_biases or link.reads_keys or new.k is not old.k:
                raise OptionError(
                    "encoding",
                    f"{link.name} reads or turns keys, which {name} goes on changing; list one of them",
                )
            later = links.index(link) > links.index(self._modules[name])  # type: ignore[arg-type]
            if later and (new.scale != old.scale or new.q is not old.q):
                raise OptionError(
                    "encoding",
                    f"{link.name} changes what {name}, before it, has multiplied; list it first",
                )


def _turns(link: Encoding) -> bool:
    return type(link).transform_query is not Encoding.transform_query
