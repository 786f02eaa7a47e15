"""The laws that every encoding keeps. A law takes a member, makes what it needs of it and asserts; facts select the laws.

Most laws look at a `Stack`: two attention layers with residuals, as a trunk has them, so that what an encoding embeds,
notes, turns, describes and takes back is all under the law, and so are caches and memories of more than one layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

import zoo
from zoo.attention import chunked as chunking
from zoo.attention.attend import ROWS, attend
from zoo.attention.chain import Chain
from zoo.attention.context import Context, KeyValueCache, SegmentMemory
from zoo.attention.coordinates import grid
from zoo.attention.dense import mask, mix, weights
from zoo.attention.encoding import Dims, Encoding
from zoo.attention.layer import SelfAttention
from zoo.attention.terms import Terms
from zoo.attention.tokens import Tokens
from zoo.errors import Invalid

EXACT = 1e-9  # the same numbers in another order, in float64
SEEN = 1e-6  # a difference, not rounding, in float64
ROUNDED = 0.06  # what bfloat16 may do to a state of order one in two layers

BATCH, HEADS, TOKENS = 2, 2, 12
HEAD_SIZES = (48, 64, 96, 128)  # the first that suits a member's options
SIZES = {1: (8192,), 2: (3, 4), 3: (2, 3, 2)}  # of training; a text may be shorter, and shifted within its table
DOCUMENTS = (0, 0, 0, 0, 1, 1, 1, 1, 1, 2, -1, -1)


@dataclass(frozen=True)
class Member:
    """Who is under the law: an encoding or a list of them, on a number of axes."""

    name: str
    axes: int
    build: Callable[[Dims], Encoding]
    variant: bool = False  # another member under other options
    key_heads: int | None = None

    def __str__(self) -> str:
        return f"{self.name}-{self.axes}"

    def sized(self, head: int, layer: int = 0, axes: int | None = None) -> Dims:
        axes = axes or self.axes
        return Dims(HEADS * head, HEADS, axes, SIZES.get(axes, (2,) * axes), layer, 2, self.key_heads)

    @cached_property
    def head(self) -> int:
        return next((head for head in HEAD_SIZES if self._fits(head)), HEAD_SIZES[0])

    def _fits(self, head: int) -> bool:
        try:
            self.build(self.sized(head))
        except Invalid:
            return False
        return True

    @property
    def dims(self) -> Dims:
        return self.sized(self.head)

    def make(self, layer: int = 0) -> Encoding:
        """A fresh encoding for a layer of two."""
        return self.build(self.sized(self.head, layer))

    @cached_property
    def facts(self) -> Chain:
        """An encoding to read facts off."""
        return Chain.of(self.make())

    @property
    def grouped(self) -> Member:
        """The same member with one key head for all query heads."""
        return replace(self, key_heads=1)

    @property
    def shares(self) -> bool:
        """Whether it lets query heads share key heads."""
        try:
            self.grouped.make()
        except Invalid as error:
            return "key_heads" not in str(error)  # any other reason is a fault
        return True

    @property
    def most_axes(self) -> int:
        """On fewer, generators that do not commute have nothing to commute with."""
        return max(axes for axes in (1, 2, 3) if all(axes in link.axes for link in self.facts))

    @property
    def masks(self) -> tuple[bool, ...]:
        return (True,) if self.facts.causal else (False,) if self.facts.whole else (False, True)

    def pos(self) -> Tensor:
        """Indices [TOKENS, P]."""
        like = torch.zeros(0, dtype=torch.float64)
        return grid((TOKENS,) if self.axes == 1 else SIZES[self.axes], like)

    def states(self, batch: int = BATCH) -> Tensor:
        """Random states [batch, TOKENS, D]."""
        return torch.randn(batch, TOKENS, self.dims.dim, dtype=torch.float64)


class Stack(nn.Module):
    """Attention layers with residuals; links are shared between them or not, as they declare."""

    def __init__(
        self, member: Member, *, causal: bool, backend: str = "auto", layers: int = 2, window: int | None = None
    ) -> None:
        super().__init__()
        chains = [Chain.of(member.make(layer)) for layer in range(layers)]
        for chain in chains[1:]:
            for name, link in chains[0].named_children():
                if link.shared:
                    chain.add_module(name, link)
        self.chains = nn.ModuleList(chains)
        self.layers = nn.ModuleList(
            SelfAttention(chain.dims, causal=causal, backend=backend, window=window) for chain in chains
        )
        perturb(self.double().eval(), self.chains)
        self.even = True  # tokens that are one place apart say so

    def forward(
        self, x: Tensor, pos: Tensor, placed: Tensor | None = None, document: Tensor | None = None,
        context: Context | None = None,
    ) -> Tensor:  # fmt: skip
        tokens = self.chains[0].embed(self.tokens(x, pos, placed, document))
        for layer, chain in zip(self.layers, self.chains, strict=True):
            after, riders = layer(tokens, chain, context or Context())
            after = after.replace(x=tokens.x + after.x)
            tokens = after if riders is None else chain.update(after, riders)
        return tokens.x

    def tokens(self, x: Tensor, pos: Tensor, placed: Tensor | None, document: Tensor | None) -> Tokens:
        """Tokens as a model of text makes them under a causal mask, or a model of images."""
        tokens = Tokens.at(x, pos, placed, document, ordered=self.layers[0].causal and pos.shape[-1] == 1)
        even = document is None and not pos.is_meta and bool((tokens.pos.diff(dim=1) == 1).all())
        return tokens.replace(consecutive=tokens.ordered and even and self.even)

    def terms(self, x: Tensor, pos: Tensor, placed: Tensor | None = None, document: Tensor | None = None) -> Terms:
        """The attention call of the first layer."""
        tokens = self.chains[0].embed(self.tokens(x, pos, placed, document))
        return self.layers[0].describe(tokens, self.chains[0], Context())[1]  # type: ignore[no-any-return]

    def fused(self, x: Tensor, pos: Tensor) -> bool:
        """Whether PyTorch's kernels can compute this."""
        terms = self.terms(x, pos)
        return all(getattr(terms, field) is None for field in ROWS)


@torch.no_grad()
def perturb(stack: nn.Module, modules: nn.Module) -> None:
    """Move parameters that are zero at first, so that nothing hides behind them."""
    for parameter in modules.parameters():
        if not parameter.any():
            parameter.normal_(std=0.5)


def near(actual: Tensor, expected: Tensor, tolerance: float = EXACT) -> None:
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


def differ(actual: Tensor, expected: Tensor) -> bool:
    return bool((actual - expected).abs().max() > SEEN)


def finite(module: nn.Module) -> bool:
    return all(p.grad is None or bool(p.grad.isfinite().all()) for p in module.parameters())


def document() -> Tensor:
    return torch.tensor([DOCUMENTS])


def unplaced() -> Tensor:
    """bool [TOKENS]: a class token first, a register token last."""
    placed = torch.ones(TOKENS, dtype=torch.bool)
    placed[0] = placed[-1] = False
    return placed


LAWS: list[tuple[Callable[[Member], None], Callable[[Member], bool]]] = []
"""Each law, and whether it applies to a member."""


def law(
    applies: Callable[[Member], bool] = lambda member: True,
) -> Callable[[Callable[[Member], None]], Callable[[Member], None]]:
    def listed(check: Callable[[Member], None]) -> Callable[[Member], None]:
        LAWS.append((check, applies))
        return check

    return listed


# 1


@law()
def shapes_are_kept(member: Member) -> None:
    encoding, x = member.make().double(), member.states()
    assert zoo.embed(encoding, x, member.pos()).shape == x.shape
    for causal in member.masks:
        for n in (TOKENS, 5):
            q, k, v = (torch.randn(BATCH, HEADS, count, member.head).double() for count in (n, TOKENS, TOKENS))
            assert zoo.scores(encoding, q, k, member.pos(), x=x, causal=causal).shape == (BATCH, HEADS, n, TOKENS)
            assert zoo.weights(encoding, q, k, member.pos(), x=x, causal=causal).shape == (BATCH, HEADS, n, TOKENS)
            assert zoo.attend(encoding, q, k, v, member.pos(), x=x, causal=causal).shape == q.shape


# 2


def _gradients(stack: Stack, member: Member, placed: Tensor | None = None) -> dict[str, Tensor | None]:
    x = member.states()
    out = stack(x, member.pos(), placed)
    (out * torch.randn_like(out)).sum().backward()
    return {name: parameter.grad for name, parameter in stack.chains.named_parameters()}


def _row_constant(name: str, member: Member) -> bool:
    return name.partition(".")[2] in member.facts.row_constant  # without the layer's number


@law()
def initial_gradients_are_finite(member: Member) -> None:
    chain = Chain.of(member.make())
    before = {name: value.clone() for name, value in chain.state_dict().items()}
    stack = Stack(member, causal=member.facts.causal)
    fresh = [Chain.of(member.make(layer)) for layer in range(2)]
    for moved, initial in zip(stack.chains, fresh, strict=True):
        moved.load_state_dict(initial.double().state_dict())
    assert before.keys() == fresh[0].state_dict().keys()
    for name, gradient in _gradients(stack, member).items():
        assert _row_constant(name, member) or gradient is not None, f"{name} receives no gradient"
        assert gradient is None or gradient.isfinite().all(), f"{name} has a gradient that is not finite"


@law()
def every_parameter_learns(member: Member) -> None:
    for name, gradient in _gradients(Stack(member, causal=member.facts.causal), member, unplaced()).items():
        if not _row_constant(name, member):
            assert gradient is not None, f"{name} receives no gradient"
            assert gradient.abs().max() > EXACT, f"{name} has a gradient of zero"


# 3


def _results(stack: Stack, backend: str, x: Tensor, *where: Tensor | None) -> list[Tensor]:
    """Output, and gradients of x and all parameters, by an interpreter."""
    for layer in stack.layers:
        layer.backend = backend
    out = stack(x, *where)
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    leaves = [x, *stack.parameters()]
    gradients = torch.autograd.grad((out * weight).sum(), leaves, allow_unused=True)
    return [out, *(torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, gradients, strict=True))]


@law()
def dense_and_sdpa_agree(member: Member) -> None:
    for causal in member.masks:
        stack, x = Stack(member, causal=causal), member.states().requires_grad_()
        for where in ((member.pos(),), (member.pos(), unplaced(), document())):
            if not stack.fused(x, member.pos()):
                with pytest.raises(Invalid, match="use dense"):
                    _results(stack, "sdpa", x, *where)
                continue
            for one, other in zip(_results(stack, "dense", x, *where), _results(stack, "sdpa", x, *where), strict=True):
                near(one, other)


@law()
def dense_and_chunks_agree(member: Member) -> None:
    for causal in member.masks:
        stack, x = Stack(member, causal=causal), member.states().requires_grad_()
        for where in ((member.pos(),), (member.pos(), unplaced(), document())):
            whole = _results(stack, "dense", x, *where)
            with patch.multiple(chunking, LEAST=5, ROOM={"cpu": 0}):
                parts = _results(stack, "chunked", x, *where)
            for one, other in zip(whole, parts, strict=True):
                near(one, other)


@law()
@torch.no_grad()
def dense_and_flex_agree(member: Member) -> None:
    for causal in member.masks:
        stack, x = Stack(member, causal=causal, layers=1), member.states()
        terms = stack.terms(x, member.pos(), *((unplaced(), document()) if causal else ()))
        if stack.fused(x, member.pos()):
            near(attend(terms, "flex")[0], attend(terms, "dense")[0])
        else:
            with pytest.raises(Invalid, match="use dense"):
                attend(terms, "flex")


# 4


def _grows(member: Member) -> bool:
    """Whether a causal model may have it: what reads the whole text before the first layer is another beside a longer text."""
    return not member.facts.whole


@law(_grows)
def differences_of_slots_are_offsets(member: Member) -> None:
    stack, x = Stack(member, causal=True), member.states().requires_grad_()
    told = _results(stack, "auto", x, member.pos())
    stack.even = False
    for one, other in zip(told, _results(stack, "auto", x, member.pos()), strict=True):
        near(one, other)


@law(_grows)
def future_tokens_change_nothing(member: Member) -> None:
    stack, x = Stack(member, causal=True), member.states()
    whole = stack(x, member.pos())
    for now in (1, 6, TOKENS - 1):
        other = torch.cat([x[:, :now], 3 * torch.randn_like(x[:, now:])], dim=1)
        near(stack(other, member.pos())[:, :now], whole[:, :now])


# 5


def _in_parts(stack: Stack, context: Context, x: Tensor, pos: Tensor, *counts: int) -> Tensor:
    xs, places = x.split(counts, dim=1), pos.split(counts)
    return torch.cat([stack(part, place, context=context) for part, place in zip(xs, places, strict=True)], dim=1)


@law(_grows)
def decoding_equals_one_pass(member: Member) -> None:
    stack, x, pos = Stack(member, causal=True), member.states(), member.pos()
    whole = stack(x, pos)
    near(_in_parts(stack, KeyValueCache(), x, pos, *[1] * TOKENS), whole)
    near(_in_parts(stack, KeyValueCache(), x, pos, 5, 1, 4, 2), whole)


@law(_grows)
def a_longer_run_begins_the_same(member: Member) -> None:
    stack, x, pos = Stack(member, causal=True), member.states(), member.pos()
    whole = stack(x, pos)
    for n in (1, 5, TOKENS - 1):
        near(stack(x[:, :n], pos[:n]), whole[:, :n])


# 6


@law(_grows)
def full_memory_equals_one_pass(member: Member) -> None:
    stack, x, pos = Stack(member, causal=True), member.states(), member.pos()
    near(_in_parts(stack, SegmentMemory(TOKENS), x, pos, 5, 4, 3), stack(x, pos))


# 7


@law(lambda member: member.facts.relative)
def shifts_change_nothing(member: Member) -> None:
    for causal in member.masks:
        stack, x, pos = Stack(member, causal=causal), member.states(), member.pos()
        for axis in torch.eye(member.axes, dtype=pos.dtype):
            near(stack(x, pos + 2.5 * axis), stack(x, pos))


@law(lambda member: not member.facts.relative and member.axes == member.most_axes)
def shifts_are_seen(member: Member) -> None:
    stack, x, pos = Stack(member, causal=member.facts.causal), member.states(), member.pos()
    shifts = (1, 1024) if member.axes == 1 else (1,)
    shifted = [stack(x, pos + shift * axis) for axis in torch.eye(member.axes) for shift in shifts]
    assert any(differ(out, stack(x, pos)) for out in shifted), f"{member.name} could declare itself relative"


# 8


@law()
def undeclared_axes_are_refused(member: Member) -> None:
    for axes in (1, 2, 3, 4):
        if not all(axes in link.axes for link in member.facts):
            with pytest.raises(Invalid, match=f"ax[ei]s, not {axes}"):
                member.build(member.sized(member.head, axes=axes))


# 9


def _typical(member: Member) -> bool:
    """Alone, and on two axes where it can: a graph hardly depends on axes, options and company, and takes seconds."""
    links = list(member.facts)
    plain = all(link.absorbs or not any(True for _ in link.parameters()) for link in links)  # no two that learn
    alone = len(links) == 1 or (plain and any(link.absorbs for link in links))
    return alone and not member.variant and (member.axes == 2 or not all(2 in link.axes for link in links))


@law(_typical)
def a_compiler_captures_it(member: Member, backend: str = "aot_eager") -> None:
    torch._dynamo.reset()
    layer = zoo.Attention(member.dims, member.make(), causal=member.facts.causal).double()
    x = member.states().requires_grad_()
    leaves, results = [x, *layer.parameters()], []
    for run in (layer, torch.compile(layer, fullgraph=True, backend=backend)):
        torch.manual_seed(0)  # for what training draws
        out = run(x)
        gradients = torch.autograd.grad(out.square().sum(), leaves, allow_unused=True)
        results.append([out, *(g for g in gradients if g is not None)])
    for eager, compiled in zip(*results, strict=True):
        near(compiled, eager)


# 10


@law()
def bfloat16_stays_close(member: Member) -> None:
    stack, x = Stack(member, causal=member.facts.causal).float(), member.states().float()
    far = 5000 if member.axes == 1 else 100  # where an angle or a sum in bfloat16 would be off by more than one
    pos = (member.pos() + far).float()
    exact = stack(x, pos)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = stack(x, pos)
    rounded.float().square().sum().backward()
    assert finite(stack)
    near(rounded.float(), exact, ROUNDED)


@law()
def weights_may_be_bfloat16(member: Member) -> None:
    stack, x = Stack(member, causal=member.facts.causal), member.states()
    try:
        out = stack.bfloat16()(x.bfloat16(), member.pos().float())
    except RuntimeError as error:  # as of a norm that meets another dtype
        pytest.fail(str(error))
    out.float().square().sum().backward()
    assert out.dtype == torch.bfloat16
    assert out.isfinite().all()
    assert finite(stack)


# 11


@law()
def a_state_dict_carries_everything(member: Member) -> None:
    x, pos = member.states(), member.pos()
    saved, loaded = (Stack(member, causal=member.facts.causal) for _ in range(2))
    loaded.load_state_dict(saved.state_dict(), strict=True)
    near(loaded(x, pos), saved(x, pos))


# 12


@law()
def weights_are_shares_of_what_is_visible(member: Member) -> None:
    for causal in member.masks:
        for where in ((), (unplaced(), document())):
            terms = Stack(member, causal=causal, layers=1).terms(member.states(), member.pos(), *where)
            shares = weights(terms)
            assert (shares >= 0).all()
            assert (shares.masked_select(~mask(terms)) == 0).all()
            assert (shares.sum(-1) <= 1 + EXACT).all()


@law()
def a_masked_row_gives_nothing(member: Member) -> None:
    padding = document()[0] < 0
    for causal in member.masks:
        for backend in ("dense", "auto"):
            stack = Stack(member, causal=causal, layers=1)
            terms = stack.terms(member.states(), member.pos(), None, document())
            out, _ = attend(terms, backend)
            rest = torch.zeros_like(out) if terms.readout is None else terms.readout(weights(terms), terms.whole)
            near(out[:, :, padding], rest[:, :, padding])
            out.square().sum().backward()
            assert finite(stack)


# 13


@law()
def each_sample_has_its_own_positions(member: Member) -> None:
    places = torch.stack([member.pos(), 2 * member.pos() + 1])
    for causal in member.masks:
        stack, x = Stack(member, causal=causal), member.states()
        near(stack(x, member.pos().expand(BATCH, -1, -1)), stack(x, member.pos()))
        together = stack(x, places)
        for sample in range(BATCH):
            near(together[sample], stack(x[sample, None], places[sample])[0])


# 14


@law(lambda member: not member.facts.causal)
def permuted_tokens_permute_the_output(member: Member) -> None:
    stack, x, pos, order = Stack(member, causal=False), member.states(), member.pos(), torch.randperm(TOKENS)
    near(stack(x[:, order], pos[order]), stack(x, pos)[:, order])


# 15


@law()
def the_place_of_an_unplaced_token_is_not_read(member: Member) -> None:
    placed = unplaced()
    moved = torch.where(placed[:, None], member.pos(), member.pos() + 7)
    for causal in member.masks:
        stack, x = Stack(member, causal=causal), member.states()
        near(stack(x, moved, placed), stack(x, member.pos(), placed))


def _replaced(link: Encoding) -> bool:
    """Whether a link does something of its own with tokens without a place (TUPE's reset, PoPE's lengths)."""
    own = type(link)
    return link.unplaced and (own.terms is not Encoding.terms or own.turn_query is not Encoding.turn_query)


@law(lambda member: not any(map(_replaced, member.facts)))
def unplaced_tokens_are_left_alone(member: Member) -> None:
    placed, both = unplaced(), unplaced()[:, None] & unplaced()
    for causal in member.masks:
        chain, x = Stack(member, causal=causal, layers=1).chains[0], member.states()
        q, k = torch.randn(2, BATCH, HEADS, TOKENS, member.head, dtype=x.dtype).unbind()
        scores = zoo.scores(chain, q, k, member.pos(), x=x, placed=placed, causal=causal)
        plain = zoo.scores(zoo.encoding([], member.dims), q, k, member.pos(), causal=causal)
        tokens = chain.annotate(chain.embed(Tokens.at(x, member.pos(), placed)))
        unbiased = chain.turn_query(q, tokens) @ chain.turn_key(k, tokens).mT * member.head**-0.5
        near(scores[..., ~placed, :][..., ~placed], plain[..., ~placed, :][..., ~placed])
        near(scores[~both & scores.isfinite()], unbiased[~both & scores.isfinite()])
        near(tokens.x[:, ~placed], x[:, ~placed])


# 16


@law()
def zero_parameters_give_finite_gradients(member: Member) -> None:
    stack = Stack(member, causal=member.facts.causal)
    for parameter in stack.chains.parameters():
        parameter.data.zero_()
    out = stack(member.states(), member.pos())
    out.square().sum().backward()
    assert out.isfinite().all()
    assert finite(stack)


# 17


@law()
def packed_documents_are_apart(member: Member) -> None:
    pos, documents = member.pos().clone(), document()[0]
    for number in (1, 2):  # each begins at the first place again
        pos[documents == number] = member.pos()[: int((documents == number).sum())]
    for causal in member.masks:
        stack, x = Stack(member, causal=causal), member.states()
        packed = stack(x, pos, document=documents)
        for number in range(3):
            own = documents == number
            near(packed[:, own], stack(x[:, own], pos[own]))


@law()
def padding_changes_nothing(member: Member) -> None:
    for causal in member.masks:
        stack, x, pos = Stack(member, causal=causal), member.states(), member.pos()
        for real in (slice(3, TOKENS), slice(0, TOKENS - 3), slice(2, TOKENS - 2)):
            documents = torch.full((TOKENS,), -1)
            documents[real] = 0
            near(stack(x, pos, document=documents)[:, real], stack(x[:, real], pos[real]))


# 18


@torch.no_grad()
def _repeat(grouped: Stack, repeated: Stack) -> None:
    """Give a stack with a key head per query head what one with a single key head has."""
    found = grouped.state_dict()
    for name, value in repeated.state_dict().items():
        one = found[name]
        axes = [axis for axis in range(value.dim()) if value.shape[axis] != one.shape[axis]]
        assert len(axes) < 2, f"{name} is {tuple(one.shape)} with one key head, {tuple(value.shape)} with two"
        value.copy_(torch.cat([one] * HEADS, axes[0]) if axes else one)


@law(lambda member: member.shares)
def shared_key_heads_equal_repeated_ones(member: Member) -> None:
    for causal in member.masks:
        grouped, repeated = Stack(member.grouped, causal=causal), Stack(member, causal=causal)
        _repeat(grouped, repeated)
        x, where = member.states(), (member.pos(), unplaced(), document())
        near(grouped(x, *where), repeated(x, *where))


# 19


@law(_grows)
def what_left_the_window_is_not_needed(member: Member) -> None:
    stack, x, pos = Stack(member, causal=True, window=4), member.states(), member.pos()
    whole = stack(x, pos)
    near(_in_parts(stack, KeyValueCache(), x, pos, 7, *[1] * (TOKENS - 7)), whole)
    near(_in_parts(stack, KeyValueCache(), x, pos, 2, 6, 4), whole)


# 20


@law()
@torch.no_grad()
def chosen_queries_are_rows_of_the_whole(member: Member) -> None:
    slots = torch.tensor([8, 1, 5, TOKENS - 1])
    for causal in member.masks:
        stack, x = Stack(member, causal=causal, layers=1), member.states()
        tokens = stack.chains[0].embed(stack.tokens(x, member.pos(), unplaced(), document()))
        whole, chosen = (stack.layers[0].describe(tokens, stack.chains[0], Context(), s)[1] for s in (None, slots))
        near(weights(chosen), weights(whole)[:, :, slots])
        expected = attend(whole)[0][:, :, slots]
        near(mix(chosen, weights(chosen))[..., : expected.shape[-1]], expected)
        near(attend(chosen)[0], expected)
