"""A chain folds the hooks of its links, and holds for all of them what is held once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import zoo
from zoo.attention.backends.reference import scores, weights
from zoo.attention.call import AttentionCall
from zoo.attention.chain import Chain
from zoo.attention.coordinates import grid
from zoo.attention.encoding import Dims, Encoding
from zoo.attention.tokens import Tokens
from zoo.errors import OptionError

DIMS = Dims(16, 2, 2, (2, 3))
N = 6
PLACED = torch.tensor([False, True, True, True, True, False])
BOTH = PLACED[:, None] & PLACED


class Seeing(Encoding):
    """Notes the coordinates that each hook is shown."""

    axes = (2,)

    def __init__(self, convention):
        super().__init__(DIMS)
        self.coordinates, self.seen = convention, []

    def embed(self, tokens):
        self.seen.append(tokens.pos)
        return tokens

    prepare = embed

    def modify(self, call):
        self.seen += [call.queries.pos, call.keys.pos]
        return call

    def after_attention(self, tokens, extra):
        self.seen.append(tokens.pos)
        return tokens


class SeeingHeads(Seeing):
    def transform_query(self, q, tokens):
        self.seen.append(tokens.pos)
        return q

    transform_key = transform_query


class Changing(Encoding):
    """Changes what it is told to, by functions of the same names as the hooks."""

    axes = (2,)

    def __init__(self, handles_special_tokens=False, **hooks):
        super().__init__(DIMS)
        self.handles_special_tokens, self.hooks = handles_special_tokens, hooks

    def embed(self, tokens):
        return tokens.replace(x=self.hooks["embed"](tokens.x)) if "embed" in self.hooks else tokens

    def prepare(self, tokens):
        return (
            tokens.replace(x=self.hooks["prepare"](tokens.x)) if "prepare" in self.hooks else tokens
        )

    def modify(self, call):
        return self.hooks["modify"](call) if "modify" in self.hooks else call


class Turning(Encoding):
    axes = (2,)

    def __init__(self, handles_special_tokens=False):
        super().__init__(DIMS)
        self.handles_special_tokens = handles_special_tokens

    def transform_query(self, q, tokens):
        return 2 * q

    def transform_key(self, k, tokens):
        return 3 * k


def chain(*links):
    return Chain(DIMS, {f"link{i}": link for i, link in enumerate(links)})


def tokens(has_position=None):
    x = torch.randn(1, N, 16, dtype=torch.float64)
    at = Tokens.at(x, grid((2, 3), x), has_position)
    return at.replace(grid_size=torch.tensor([[[2.0, 3.0]]]).double())


def make_call(has_position=None):
    q, k, v = torch.randn(3, 1, 2, N, 8, dtype=torch.float64).unbind()
    keys = tokens(has_position)
    return AttentionCall(q, k, v, q, keys, keys, False, 8**-0.5)


# folding


def test_each_link_sees_its_own_coordinates():
    links = [Seeing("fraction"), SeeingHeads("index"), Seeing("symmetric")]
    folded, at, heads = chain(*links), tokens(), torch.zeros(1, 2, N, 8).double()
    folded.transform_query(heads, folded.prepare(folded.embed(at)))
    folded.transform_key(heads, at)
    folded.after_attention(at, heads)
    folded.modify(AttentionCall(heads, heads, heads, heads, at, at, False, 1.0))
    index = grid((2, 3), at.x)
    fraction = (index + 0.5) / torch.tensor([2.0, 3.0])
    assert [len(link.seen) for link in links] == [5, 7, 5]
    for link, expected in zip(links, (fraction, index, 2 * fraction - 1), strict=True):
        assert all(torch.equal(pos[0], expected) for pos in link.seen)


def test_links_are_folded_in_order():
    folded = chain(Changing(embed=lambda x: x + 1), Changing(embed=lambda x: 2 * x))
    at = tokens()
    assert torch.equal(folded.embed(at).x, 2 * (at.x + 1))


def test_a_later_link_reads_the_biases_before_it():
    double = Changing(modify=lambda t: t.add_bias(t.bias_function()) if t.biases else t)
    one = Changing(modify=lambda t: t.add_bias(lambda b, h, i, j: 1.0 + 0 * (i + j)))
    after, before = chain(one, double).modify(make_call()), chain(double, one).modify(make_call())
    assert (after.evaluate(after.bias_function()) == 2).all()
    assert (before.evaluate(before.bias_function()) == 1).all()


def test_a_link_may_absorb_the_biases_before_it():
    one = Changing(modify=lambda t: t.add_bias(lambda b, h, i, j: 1.0 + 0 * (i + j)))
    absorbing = Changing(
        modify=lambda t: t.replace(
            biases=(),
            low_rank_biases=(),
            transform_scores=lambda s, _, span, a=t: s + 5 * a.sum_biases(span),
        )
    )
    described, bare = chain(one, absorbing).modify(make_call()), make_call()
    described = described.replace(q=bare.q, k=bare.k)
    torch.testing.assert_close(scores(described), scores(bare) + 5)


@pytest.mark.parametrize("field", ["transform_scores", "normalize", "extra_output", "extra_values"])
def test_only_one_link_writes(field):
    links = [
        Changing(modify=lambda t: t.replace(**{field: lambda *args: args[0]})) for _ in range(2)
    ]
    with pytest.raises(OptionError, match=f"both write {field}"):
        chain(*links).modify(make_call())
    assert getattr(chain(links[0], Changing()).modify(make_call()), field) is not None


def test_different_links_may_write_different_fields():
    fields = [
        Changing(modify=lambda t, f=f: t.replace(**{f: lambda *args: args[0]}))
        for f in ("transform_scores", "normalize", "extra_output")
    ]
    chain(*fields).modify(make_call())


def test_only_one_link_turns():
    with pytest.raises(OptionError, match="link0 and link2 both transform queries and keys"):
        chain(Turning(), Changing(), Turning())


class Settling(Encoding):
    axes = (2,)

    def __init__(self, factor=2):
        super().__init__(DIMS)
        self.name, self.factor = "settling", factor

    def update_cached_keys(self, k, tokens):
        return self.factor * k, tokens.with_per_token(
            spent=torch.cat([tokens.per_token["spent"], k.new_full((1, 1), self.factor)], 1)
        )


def test_settling_is_what_turns():
    with pytest.raises(OptionError, match="link0 and link1 both transform queries and keys"):
        chain(Settling(), Turning())
    k, kept = chain(Changing(), Settling(3)).update_cached_keys(
        torch.ones(1), tokens().with_per_token(spent=torch.ones(1, 0))
    )
    assert (k.tolist(), kept.per_token["spent"].tolist()) == ([3.0], [[3.0]])


@pytest.mark.parametrize("first", [True, False])
def test_a_link_that_reads_keys_that_another_settles_is_refused(first):
    reading = Changing(modify=lambda t: t.add_low_rank_bias(t.q, t.k))
    reading.reads_keys = True
    links = (reading, Settling()) if first else (Settling(), reading)
    with pytest.raises(OptionError, match="updates later; list one of them"):
        chain(*links).modify(make_call())


@pytest.mark.parametrize("first", ["selective_rope", "grape_a", "transformer_xl"])
def test_what_turns_or_reads_keys_after_the_cache_is_refused_beside_path(first):
    layer = zoo.Attention(zoo.Dims(32, 2), [first, "path"], causal=True)
    with pytest.raises(
        OptionError, match=f"{first} reads or changes keys, which path updates later"
    ):
        layer(torch.randn(1, 4, 32))


@pytest.mark.parametrize("change", [lambda t: {"scale": 2 * t.scale}, lambda t: {"q": 2 * t.q}])
def test_what_is_multiplied_may_change_only_before_keys_settle(change):
    changing = Changing(modify=lambda t: t.replace(**change(t)))
    chain(changing, Settling()).modify(make_call())
    with pytest.raises(
        OptionError, match="changes what link0, before it, has multiplied; list it first"
    ):
        chain(Settling(), changing).modify(make_call())


def test_a_link_that_absorbs_biases_is_refused_beside_one_that_settles():
    absorbing = Changing()
    absorbing.consumes_biases = True
    with pytest.raises(OptionError, match="reads or changes keys"):
        chain(Settling(), absorbing).modify(make_call())


def test_facts_are_folded():
    first, second = Changing(), Turning()
    first.shift_invariant = second.shift_invariant = True
    second.zero_gradient, second.causal_only, second.shared = ("bias",), True, False
    folded = chain(first, second)
    assert (folded.shift_invariant, folded.causal_only, folded.shared) == (True, True, False)
    assert folded.zero_gradient == ("link1.bias",)
    first.shift_invariant = False
    assert not chain(first, second).shift_invariant


def test_a_chain_of_a_chain_is_itself():
    folded = chain(Turning())
    assert Chain.of(folded) is folded
    assert next(iter(Chain.of(Turning()).named_children()))[0] == "encoding"


def test_parameters_are_prefixed_with_names():
    folded = zoo.encoding(["learned", {"name": "liere", "block": 4}], DIMS)
    assert [name for name, _ in folded.named_parameters()] == ["learned.table", "liere.generators"]
    assert [name for name, _ in Chain.of(zoo.encoding("learned", DIMS)).named_parameters()] == [
        "learned.table"
    ]


def test_an_empty_chain_changes_nothing():
    at, described = tokens(), make_call()
    empty = chain()
    assert empty.embed(at) is at
    assert empty.modify(described) is described
    assert empty.shift_invariant


# tokens without a place


@pytest.mark.parametrize("hook", ["embed", "prepare"])
def test_states_of_unplaced_tokens_stay(hook):
    at = tokens(PLACED)
    new = getattr(chain(Changing(**{hook: lambda x: x + 1})), hook)(at)
    assert torch.equal(new.x, at.x + PLACED[:, None])
    declared = getattr(
        chain(Changing(handles_special_tokens=True, **{hook: lambda x: x + 1})), hook
    )(at)
    assert torch.equal(declared.x, at.x + 1)


@pytest.mark.parametrize(("hook", "factor"), [("transform_query", 2), ("transform_key", 3)])
def test_heads_of_unplaced_tokens_stay(hook, factor):
    heads, at = torch.randn(1, 2, N, 8, dtype=torch.float64), tokens(PLACED)
    assert torch.equal(
        getattr(chain(Turning()), hook)(heads, at),
        torch.where(PLACED[:, None], factor * heads, heads),
    )
    assert torch.equal(
        getattr(chain(Turning(handles_special_tokens=True)), hook)(heads, at), factor * heads
    )


def add_bias(call):
    return call.add_bias(lambda b, h, i, j: 1.0 + i + 10.0 * j)


def add_factors(call):
    rows = torch.arange(1.0, N + 1).double()[None, None, :, None]
    return call.add_low_rank_bias(rows, rows.new_ones(1, 1, 1, 1)).add_low_rank_bias(
        rows.new_ones(1, 1, 1, 1), 10 * rows
    )


def rescore(call):
    return call.replace(
        transform_scores=lambda scores, visible, span: scores + scores.sum(-1, keepdim=True)
    )


@pytest.mark.parametrize("rewrite", [add_bias, add_factors, rescore])
def test_scores_of_unplaced_pairs_stay(rewrite):
    described = make_call(PLACED)
    plain, everywhere = scores(described), scores(rewrite(described))
    confined = scores(chain(Changing(modify=rewrite)).modify(described))
    torch.testing.assert_close(confined, torch.where(BOTH, everywhere, plain))
    declared = scores(
        chain(Changing(handles_special_tokens=True, modify=rewrite)).modify(described)
    )
    torch.testing.assert_close(declared, everywhere)


def test_nothing_is_read_out_of_unplaced_pairs():
    seen = []
    reading = Changing(
        modify=lambda t: t.replace(
            extra_output=lambda shares, span: seen.append(shares) or shares @ t.v
        )
    )
    described = chain(reading).modify(make_call(PLACED))
    shares = weights(described)
    described.extra_output(shares, described.full_span)
    assert torch.equal(seen[0], shares * BOTH)


@pytest.mark.parametrize(("before", "after"), [(add_bias, add_factors), (add_factors, add_bias)])
def test_a_link_confines_only_what_it_added(before, after):
    described = make_call(PLACED)
    both = chain(
        Changing(handles_special_tokens=True, modify=before), Changing(modify=after)
    ).modify(described)
    added = after(described).evaluate(after(described).bias_function())
    torch.testing.assert_close(
        scores(both), scores(before(described)) + torch.where(BOTH, added, 0)
    )


def test_without_a_mask_all_tokens_have_a_place():
    described = chain(Changing(modify=add_bias)).modify(make_call())
    assert len(described.biases) == 1
    torch.testing.assert_close(scores(described), scores(add_bias(described.replace(biases=()))))


class Owning(Encoding):
    axes = (2,)

    def __init__(self):
        super().__init__(DIMS)
        self.table = nn.Parameter(torch.zeros(1))


def test_links_are_registered_once():
    link = Owning()
    assert len(list(Chain.of(link).parameters())) == 1
    layer = zoo.Attention(DIMS, link)
    assert [name for name in layer.state_dict() if "table" in name] == ["encoding.table"]


# rescoring


class Tripled(Encoding):
    """Takes the biases before it up and triples the whole."""

    def modify(self, call):
        bias = call.sum_biases()
        rescore = lambda scores, visible, span: 3 * (scores if bias is None else scores + bias)  # noqa: E731
        return call.replace(biases=(), low_rank_biases=(), transform_scores=rescore)


class Lean(Encoding):
    """A bias that also holds for tokens without a place."""

    handles_special_tokens = True

    def modify(self, call):
        return call.add_bias(lambda b, h, i, j: 0.1 * i - 0.2 * j + 0 * h)


def test_a_bias_after_rescoring_is_refused():
    dims = Dims(8, 2)
    q, lean = torch.randn(1, 2, 4, 4), Lean(dims)
    lean.name = "lean"
    chain = Chain(dims, {"tripled": Tripled(dims), "lean": lean})
    with pytest.raises(
        OptionError,
        match="lean adds a bias to scores that an encoding before it transforms; list it first",
    ):
        zoo.functional.scores(chain, q, q, torch.arange(4.0)[:, None])


def test_a_bias_that_was_taken_up_stays_where_rescoring_may_not_act():
    dims, q, pos = Dims(8, 2), torch.randn(1, 2, 4, 4), torch.arange(4.0)[:, None]
    placed = torch.tensor([False, True, True, True])
    both = placed[:, None] & placed
    lean = zoo.functional.scores(Lean(dims), q, q, pos)
    found = zoo.functional.scores(
        Chain(dims, {"lean": Lean(dims), "tripled": Tripled(dims)}), q, q, pos, has_position=placed
    )
    torch.testing.assert_close(found[..., both], 3 * lean[..., both])
    torch.testing.assert_close(found[..., ~both], lean[..., ~both])
