"""A chain folds the hooks of its links, and holds for all of them what is held once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import zoo
from zoo.attention.backends.reference import scores, weights
from zoo.attention.call import Terms
from zoo.attention.chain import Chain
from zoo.attention.coordinates import grid
from zoo.attention.encoding import Dims, Encoding
from zoo.attention.tokens import Tokens
from zoo.errors import Invalid

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

    annotate = embed

    def terms(self, terms):
        self.seen += [terms.queries.pos, terms.keys.pos]
        return terms

    def update(self, tokens, riders):
        self.seen.append(tokens.pos)
        return tokens


class SeeingHeads(Seeing):
    def turn_query(self, q, tokens):
        self.seen.append(tokens.pos)
        return q

    turn_key = turn_query


class Changing(Encoding):
    """Changes what it is told to, by functions of the same names as the hooks."""

    axes = (2,)

    def __init__(self, unplaced=False, **hooks):
        super().__init__(DIMS)
        self.unplaced, self.hooks = unplaced, hooks

    def embed(self, tokens):
        return tokens.replace(x=self.hooks["embed"](tokens.x)) if "embed" in self.hooks else tokens

    def annotate(self, tokens):
        return (
            tokens.replace(x=self.hooks["annotate"](tokens.x))
            if "annotate" in self.hooks
            else tokens
        )

    def terms(self, terms):
        return self.hooks["terms"](terms) if "terms" in self.hooks else terms


class Turning(Encoding):
    axes = (2,)

    def __init__(self, unplaced=False):
        super().__init__(DIMS)
        self.unplaced = unplaced

    def turn_query(self, q, tokens):
        return 2 * q

    def turn_key(self, k, tokens):
        return 3 * k


def chain(*links):
    return Chain(DIMS, {f"link{i}": link for i, link in enumerate(links)})


def tokens(placed=None):
    x = torch.randn(1, N, 16, dtype=torch.float64)
    at = Tokens.at(x, grid((2, 3), x), placed)
    return at.replace(extent=torch.tensor([[[2.0, 3.0]]]).double())


def call(placed=None):
    q, k, v = torch.randn(3, 1, 2, N, 8, dtype=torch.float64).unbind()
    keys = tokens(placed)
    return Terms(q, k, v, q, keys, keys, False, 8**-0.5)


# folding


def test_each_link_sees_its_own_coordinates():
    links = [Seeing("fraction"), SeeingHeads("index"), Seeing("symmetric")]
    folded, at, heads = chain(*links), tokens(), torch.zeros(1, 2, N, 8).double()
    folded.turn_query(heads, folded.annotate(folded.embed(at)))
    folded.turn_key(heads, at)
    folded.update(at, heads)
    folded.terms(Terms(heads, heads, heads, heads, at, at, False, 1.0))
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
    double = Changing(terms=lambda t: t.add_bias(t.bias()) if t.biases else t)
    one = Changing(terms=lambda t: t.add_bias(lambda b, h, i, j: 1.0 + 0 * (i + j)))
    after, before = chain(one, double).terms(call()), chain(double, one).terms(call())
    assert (after.grid(after.bias()) == 2).all()
    assert (before.grid(before.bias()) == 1).all()


def test_a_link_may_absorb_the_biases_before_it():
    one = Changing(terms=lambda t: t.add_bias(lambda b, h, i, j: 1.0 + 0 * (i + j)))
    absorbing = Changing(
        terms=lambda t: t.replace(
            biases=(), factors=(), rescore=lambda s, _, span, a=t: s + 5 * a.added(span)
        )
    )
    described, bare = chain(one, absorbing).terms(call()), call()
    described = described.replace(q=bare.q, k=bare.k)
    torch.testing.assert_close(scores(described), scores(bare) + 5)


@pytest.mark.parametrize("field", ["rescore", "weigh", "readout", "riders"])
def test_only_one_link_writes(field):
    links = [
        Changing(terms=lambda t: t.replace(**{field: lambda *args: args[0]})) for _ in range(2)
    ]
    with pytest.raises(Invalid, match=f"both write {field}"):
        chain(*links).terms(call())
    assert getattr(chain(links[0], Changing()).terms(call()), field) is not None


def test_different_links_may_write_different_fields():
    fields = [
        Changing(terms=lambda t, f=f: t.replace(**{f: lambda *args: args[0]}))
        for f in ("rescore", "weigh", "readout")
    ]
    chain(*fields).terms(call())


def test_only_one_link_turns():
    with pytest.raises(Invalid, match="link0 and link2 both turn queries and keys"):
        chain(Turning(), Changing(), Turning())


class Settling(Encoding):
    axes = (2,)

    def __init__(self, factor=2):
        super().__init__(DIMS)
        self.name, self.factor = "settling", factor

    def settle(self, k, tokens):
        return self.factor * k, tokens.note(
            spent=torch.cat([tokens.notes["spent"], k.new_full((1, 1), self.factor)], 1)
        )


def test_settling_is_what_turns():
    with pytest.raises(Invalid, match="link0 and link1 both turn queries and keys"):
        chain(Settling(), Turning())
    k, kept = chain(Changing(), Settling(3)).settle(
        torch.ones(1), tokens().note(spent=torch.ones(1, 0))
    )
    assert (k.tolist(), kept.notes["spent"].tolist()) == ([3.0], [[3.0]])


@pytest.mark.parametrize("first", [True, False])
def test_a_link_that_reads_keys_that_another_settles_is_refused(first):
    reading = Changing(terms=lambda t: t.add_factor(t.q, t.k))
    reading.reads_keys = True
    links = (reading, Settling()) if first else (Settling(), reading)
    with pytest.raises(Invalid, match="goes on changing; list one of them"):
        chain(*links).terms(call())


@pytest.mark.parametrize("first", ["selective_rope", "grape_a", "transformer_xl"])
def test_what_turns_or_reads_keys_after_the_cache_is_refused_beside_path(first):
    layer = zoo.Attention(zoo.Dims(32, 2), [first, "path"], causal=True)
    with pytest.raises(Invalid, match=f"{first} reads or turns keys, which path goes on changing"):
        layer(torch.randn(1, 4, 32))


@pytest.mark.parametrize("change", [lambda t: {"scale": 2 * t.scale}, lambda t: {"q": 2 * t.q}])
def test_what_is_multiplied_may_change_only_before_keys_settle(change):
    changing = Changing(terms=lambda t: t.replace(**change(t)))
    chain(changing, Settling()).terms(call())
    with pytest.raises(
        Invalid, match="changes what link0, before it, has multiplied; list it first"
    ):
        chain(Settling(), changing).terms(call())


def test_a_link_that_absorbs_biases_is_refused_beside_one_that_settles():
    absorbing = Changing()
    absorbing.absorbs = True
    with pytest.raises(Invalid, match="reads or turns keys"):
        chain(Settling(), absorbing).terms(call())


def test_facts_are_folded():
    first, second = Changing(), Turning()
    first.relative = second.relative = True
    second.row_constant, second.causal, second.shared = ("bias",), True, False
    folded = chain(first, second)
    assert (folded.relative, folded.causal, folded.shared) == (True, True, False)
    assert folded.row_constant == ("link1.bias",)
    first.relative = False
    assert not chain(first, second).relative


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
    at, described = tokens(), call()
    empty = chain()
    assert empty.embed(at) is at
    assert empty.terms(described) is described
    assert empty.relative


# tokens without a place


@pytest.mark.parametrize("hook", ["embed", "annotate"])
def test_states_of_unplaced_tokens_stay(hook):
    at = tokens(PLACED)
    new = getattr(chain(Changing(**{hook: lambda x: x + 1})), hook)(at)
    assert torch.equal(new.x, at.x + PLACED[:, None])
    declared = getattr(chain(Changing(unplaced=True, **{hook: lambda x: x + 1})), hook)(at)
    assert torch.equal(declared.x, at.x + 1)


@pytest.mark.parametrize(("hook", "factor"), [("turn_query", 2), ("turn_key", 3)])
def test_heads_of_unplaced_tokens_stay(hook, factor):
    heads, at = torch.randn(1, 2, N, 8, dtype=torch.float64), tokens(PLACED)
    assert torch.equal(
        getattr(chain(Turning()), hook)(heads, at),
        torch.where(PLACED[:, None], factor * heads, heads),
    )
    assert torch.equal(getattr(chain(Turning(unplaced=True)), hook)(heads, at), factor * heads)


def biased(terms):
    return terms.add_bias(lambda b, h, i, j: 1.0 + i + 10.0 * j)


def factored(terms):
    rows = torch.arange(1.0, N + 1).double()[None, None, :, None]
    return terms.add_factor(rows, rows.new_ones(1, 1, 1, 1)).add_factor(
        rows.new_ones(1, 1, 1, 1), 10 * rows
    )


def rescored(terms):
    return terms.replace(
        rescore=lambda scores, visible, span: scores + scores.sum(-1, keepdim=True)
    )


@pytest.mark.parametrize("rewrite", [biased, factored, rescored])
def test_scores_of_unplaced_pairs_stay(rewrite):
    described = call(PLACED)
    plain, everywhere = scores(described), scores(rewrite(described))
    confined = scores(chain(Changing(terms=rewrite)).terms(described))
    torch.testing.assert_close(confined, torch.where(BOTH, everywhere, plain))
    declared = scores(chain(Changing(unplaced=True, terms=rewrite)).terms(described))
    torch.testing.assert_close(declared, everywhere)


def test_nothing_is_read_out_of_unplaced_pairs():
    seen = []
    reading = Changing(
        terms=lambda t: t.replace(readout=lambda shares, span: seen.append(shares) or shares @ t.v)
    )
    described = chain(reading).terms(call(PLACED))
    shares = weights(described)
    described.readout(shares, described.whole)
    assert torch.equal(seen[0], shares * BOTH)


@pytest.mark.parametrize(("before", "after"), [(biased, factored), (factored, biased)])
def test_a_link_confines_only_what_it_added(before, after):
    described = call(PLACED)
    both = chain(Changing(unplaced=True, terms=before), Changing(terms=after)).terms(described)
    added = after(described).grid(after(described).bias())
    torch.testing.assert_close(
        scores(both), scores(before(described)) + torch.where(BOTH, added, 0)
    )


def test_without_a_mask_all_tokens_have_a_place():
    described = chain(Changing(terms=biased)).terms(call())
    assert len(described.biases) == 1
    torch.testing.assert_close(scores(described), scores(biased(described.replace(biases=()))))


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

    def terms(self, terms):
        bias = terms.added()
        rescore = lambda scores, visible, span: 3 * (scores if bias is None else scores + bias)  # noqa: E731
        return terms.replace(biases=(), factors=(), rescore=rescore)


class Lean(Encoding):
    """A bias that also holds for tokens without a place."""

    unplaced = True

    def terms(self, terms):
        return terms.add_bias(lambda b, h, i, j: 0.1 * i - 0.2 * j + 0 * h)


def test_a_bias_after_rescoring_is_refused():
    dims = Dims(8, 2)
    q, lean = torch.randn(1, 2, 4, 4), Lean(dims)
    lean.name = "lean"
    chain = Chain(dims, {"tripled": Tripled(dims), "lean": lean})
    with pytest.raises(
        Invalid, match="lean adds a bias to scores that a link before it rescores; list it first"
    ):
        zoo.scores(chain, q, q, torch.arange(4.0)[:, None])


def test_a_bias_that_was_taken_up_stays_where_rescoring_may_not_act():
    dims, q, pos = Dims(8, 2), torch.randn(1, 2, 4, 4), torch.arange(4.0)[:, None]
    placed = torch.tensor([False, True, True, True])
    both = placed[:, None] & placed
    lean = zoo.scores(Lean(dims), q, q, pos)
    found = zoo.scores(
        Chain(dims, {"lean": Lean(dims), "tripled": Tripled(dims)}), q, q, pos, placed=placed
    )
    torch.testing.assert_close(found[..., both], 3 * lean[..., both])
    torch.testing.assert_close(found[..., ~both], lean[..., ~both])
