"""Several encodings in order as one, and what holds for all of them, done once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from torch import Tensor, nn

from zoo.attention.encoding import Dims, Encoding
from zoo.attention.terms import Terms
from zoo.attention.tokens import Tokens
from zoo.attention.unplaced import added, confined, placed, turned
from zoo.errors import Invalid
from zoo.panels import Panel

EXCLUSIVE = ("rescore", "weigh", "readout", "riders")


class Chain(Encoding):
    """Several encodings in order: their hooks are folded, and what holds for all of them is done here, once.

    Each link sees coordinates under its own convention. Tokens without a place are not turned, their pairs not biased,
    unless the link declares that it handles them.
    """

    def __init__(self, dims: Dims, links: Mapping[str, Encoding]) -> None:
        nn.Module.__init__(self)
        self.dims = dims
        for name, link in links.items():
            self.add_module(name, link)
        self.settling = [n for n, link in links.items() if type(link).settle is not Encoding.settle]
        turning = [n for n, link in links.items() if n in self.settling or _turns(link)]
        if len(turning) > 1:
            raise Invalid("encoding", f"{' and '.join(turning)} both turn queries and keys; list one of them")
        self.shared = all(link.shared for link in self)
        self.relative = all(link.relative for link in self)
        self.causal = any(link.causal for link in self)
        self.whole = any(link.whole for link in self)
        self.behind = max((link.behind for link in self), default=0)
        self.axes = (dims.axes,)
        self.unplaced = True  # seen to here, link by link
        self.row_constant = tuple(f"{n}.{parameter}" for n, link in links.items() for parameter in link.row_constant)

    def __iter__(self) -> Iterator[Encoding]:
        return iter(self._modules.values())  # type: ignore[arg-type]

    @classmethod
    def of(cls, encoding: Encoding) -> Chain:
        """The encoding itself if it is a chain, else a chain of one."""
        return encoding if isinstance(encoding, Chain) else cls(encoding.dims, {encoding.name or "encoding": encoding})

    def embed(self, tokens: Tokens) -> Tokens:
        for link in self:
            tokens = added(link, tokens, link.embed(placed(link, tokens)))
        return tokens

    def annotate(self, tokens: Tokens) -> Tokens:
        for link in self:
            tokens = added(link, tokens, link.annotate(placed(link, tokens)))
        return tokens

    def turn_query(self, q: Tensor, tokens: Tokens) -> Tensor:
        for link in self:
            q = turned(link, q, link.turn_query(q, placed(link, tokens)), tokens)
        return q

    def turn_key(self, k: Tensor, tokens: Tokens) -> Tensor:
        for link in self:
            k = turned(link, k, link.turn_key(k, placed(link, tokens)), tokens)
        return k

    def settle(self, k: Tensor, tokens: Tokens) -> tuple[Tensor, Tokens]:
        for link in self:
            k, tokens = link.settle(k, tokens)
        return k, tokens

    def terms(self, terms: Terms) -> Terms:
        for link in self:
            old = terms.replace(queries=placed(link, terms.queries), keys=placed(link, terms.keys))
            new = link.terms(old)
            for field in EXCLUSIVE:
                if getattr(old, field) is not None and getattr(new, field) is not getattr(old, field):
                    raise Invalid("encoding", f"{link.name} and a link before it both write {field}; list one of them")
            if old.rescore is not None and (len(new.biases), len(new.factors)) != (len(old.biases), len(old.factors)):
                raise Invalid(
                    "encoding", f"{link.name} adds a bias to scores that a link before it rescores; list it first"
                )
            self._check_products(link, old, new)
            terms = new if link.unplaced else confined(old, new)
        return terms

    def update(self, tokens: Tokens, riders: Tensor) -> Tokens:
        for link in self:
            tokens = link.update(placed(link, tokens), riders)
        return tokens

    def findings(self, terms: Terms) -> Iterable[Panel]:
        for link in self:
            seen = terms.replace(queries=placed(link, terms.queries), keys=placed(link, terms.keys))
            for panel in link.findings(seen):
                yield replace(panel, title=f"{link.name}: {panel.title}")

    def _check_products(self, link: Encoding, old: Terms, new: Terms) -> None:
        """Refuses what would tell a kept key that was changed from one that its link has yet to change."""
        links = list(self)
        for name in self.settling:
            if link.absorbs or link.reads_keys or new.k is not old.k:
                raise Invalid(
                    "encoding", f"{link.name} reads or turns keys, which {name} goes on changing; list one of them"
                )
            later = links.index(link) > links.index(self._modules[name])  # type: ignore[arg-type]
            if later and (new.scale != old.scale or new.q is not old.q):
                raise Invalid("encoding", f"{link.name} changes what {name}, before it, has multiplied; list it first")


def _turns(link: Encoding) -> bool:
    return type(link).turn_query is not Encoding.turn_query
