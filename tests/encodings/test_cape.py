"""CAPE: x + sinusoid(p'), p' = (p + shift_b + jitter_bt) scale_b in training, p' = p in evaluation."""

from __future__ import annotations

import math

import pytest
import torch
from calls import assert_close
from literal.cape import cape, centre
from literal.sinusoidal import sinusoidal
from parameters import list_facts, make_initial

import zoo
from zoo.attention.chain import Chain
from zoo.attention.coordinates import apply_convention, grid
from zoo.attention.encoding import Dims
from zoo.attention.tokens import Tokens
from zoo.encodings.cape import CAPE
from zoo.errors import OptionError
from zoo.models.transformer import Transformer

# evaluation


def embed(encoding, index, extent, has_position=None, document=None):
    """Return what evaluation adds to tokens at indices [N, P] of a grid."""
    x = torch.zeros(1, len(index), encoding.dims.dim, dtype=torch.float64)
    tokens = Tokens.at(x, index, has_position, document)
    if extent is not None:
        tokens = tokens.replace(grid_size=torch.tensor([[extent]]).double())
    return Chain.of(encoding.eval()).embed(tokens).x[0]


def test_formula_on_a_text():
    pos = 50 * torch.rand(7, 1, dtype=torch.float64)
    encoding = zoo.encoding("cape", Dims(12, 2)).double()
    assert_close(embed(encoding, pos, None), sinusoidal(pos, 12))


@pytest.mark.parametrize("sizes", [(3, 4), (5, 2), (1, 1)])
def test_formula_on_an_image(sizes):
    index = grid(sizes, torch.zeros(0).double())
    pos = 2 * (index + 0.5) / torch.tensor(sizes) - 1
    encoding = zoo.encoding("cape", Dims(12, 2, 2)).double()
    assert_close(embed(encoding, index, sizes), cape(pos, 12))


def test_formula_with_another_convention():
    index = grid((3, 4), torch.zeros(0).double())
    encoding = zoo.encoding("cape", Dims(12, 2, 2), coordinates="fraction").double()
    expected = cape((index + 0.5) / torch.tensor([3, 4]), 12)
    assert_close(embed(encoding, index, (3, 4)), expected)


@pytest.mark.parametrize("axes", [1, 2])
def test_formula_with_the_mean_of_a_document_as_centre(axes):
    document = [-1, 0, 0, 0, 0, 1, 1, 2, -1]
    placed = [True, False, True, True, True, True, True, True, True]
    pos = torch.randn(9, axes, dtype=torch.float64).cumsum(0)
    encoding = zoo.encoding("cape", Dims(12, 2, axes), centre=True).double()
    waves = sinusoidal if axes == 1 else cape
    expected = waves(centre(pos, document, placed), 12)
    expected[1] = 0  # it has no position
    out = embed(encoding, pos, None, torch.tensor(placed), torch.tensor(document))
    assert_close(out[1:8], expected[1:8])


def test_facts():
    assert list_facts("cape") == {"axes": (1, 2)}
    assert make_initial("cape", 1).coordinates == "index"
    assert make_initial("cape", 2).coordinates == "symmetric"


def test_parameters():
    encoding = make_initial("cape")
    assert encoding.state_dict() == {}
    options = (encoding.global_shift, encoding.local_shift, encoding.scale, encoding.centre)
    assert options == (5, 0.5, 1.03, False)


# training


BATCH, TOKENS = 400, 12
GRID = (3, 4)


def make_tokens(axes=1, batch=BATCH, document=None):
    pos = grid((TOKENS,) if axes == 1 else GRID, torch.zeros(0).double())
    tokens = Tokens.at(torch.zeros(batch, TOKENS, 8, dtype=torch.float64), pos, document=document)
    if axes == 1:
        return tokens
    return tokens.replace(grid_size=torch.tensor([[GRID]]).double())


def augment(axes=1, batch=BATCH, document=None, **options):
    """Return the positions [B, N, P] that training makes of those of evaluation, and these."""
    still = {"global_shift": 0.0, "local_shift": 0.0, "scale": 1.0}
    encoding = zoo.encoding("cape", Dims(8, 2, axes), **{**still, **options})
    tokens = make_tokens(axes, batch, document)
    before = apply_convention(tokens, encoding.coordinates, None)
    return encoding._augment(before.pos, before), before.pos


def fills(values, edge):
    """True if values look like U(-edge, edge)."""
    error = 5 * edge / math.sqrt(3 * values.numel())  # five standard errors of the mean
    return bool(
        values.abs().max() <= edge
        and values.abs().max() > 0.97 * edge
        and values.mean().abs() < error
    )


@pytest.mark.parametrize("axes", [1, 2])
def test_a_sample_is_shifted_as_a_whole(axes):
    after, before = augment(axes, global_shift=3.0)
    shifts = after - before  # [B, N, P]
    torch.testing.assert_close(shifts, shifts[:, :1].expand_as(shifts))
    assert fills(shifts[:, 0], 3.0)
    assert len(shifts[:, 0].unique()) == BATCH * axes  # each sample and axis by itself


def test_each_token_of_a_text_is_jittered_by_itself():
    after, before = augment(local_shift=0.5)
    assert fills(after - before, 0.5)
    assert len((after - before).unique()) == BATCH * TOKENS
    assert (after.diff(dim=1) > 0).all()  # the order stays


def test_jitter_of_an_image_is_measured_in_patches():
    after, before = augment(2, local_shift=0.5)
    for axis, size in enumerate(GRID):
        assert fills((after - before)[..., axis], 1 / size)  # half of 2 / size
    assert len((after - before).unique()) == BATCH * TOKENS * 2


@pytest.mark.parametrize("axes", [1, 2])
def test_a_sample_is_stretched_by_one_factor(axes):
    after, before = augment(axes, scale=1.4)
    factors = (after / before)[before.expand_as(after) != 0].view(BATCH, -1)
    torch.testing.assert_close(factors, factors[:, :1].expand_as(factors))
    assert fills(factors[:, 0].log(), math.log(1.4))


def test_shifts_are_stretched_too():
    after, _ = augment(global_shift=5.0, scale=1.4)
    start, step = after[:, 0, 0], after[:, 1, 0] - after[:, 0, 0]
    assert (start / step).abs().max() < 5
    assert start.abs().max() > 5


def test_samples_draw_for_themselves_though_positions_are_shared():
    encoding = zoo.encoding("cape", Dims(8, 2)).double().train()
    out = Chain.of(encoding).embed(make_tokens(batch=3)).x
    assert all((out[a] - out[b]).abs().max() > 0.01 for a, b in ((0, 1), (0, 2), (1, 2)))


def test_documents_of_a_row_are_shifted_together():
    after, before = augment(document=torch.tensor([0] * 6 + [1] * 6), global_shift=3.0)
    torch.testing.assert_close((after - before)[:, 0], (after - before)[:, -1])


@pytest.mark.parametrize("axes", [1, 2])
def test_evaluation_draws_nothing(axes):
    encoding, state = zoo.encoding("cape", Dims(8, 2, axes)).eval(), torch.get_rng_state()
    first, second = (Chain.of(encoding).embed(make_tokens(axes)).x for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_seed_repeats_what_training_draws():
    encoding, runs = zoo.encoding("cape", Dims(8, 2)).train(), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        runs.append(Chain.of(encoding).embed(make_tokens()).x)
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


@pytest.mark.parametrize("axes", [1, 2])
def test_without_augmentation_training_is_evaluation(axes):
    encoding = zoo.encoding("cape", Dims(8, 2, axes), global_shift=0.0, local_shift=0.0, scale=1.0)
    tokens = make_tokens(axes)
    trained, evaluated = (Chain.of(encoding.train(mode)).embed(tokens).x for mode in (True, False))
    assert torch.equal(trained, evaluated)
    if axes == 1:
        plain = Chain.of(zoo.encoding("sinusoidal", Dims(8, 2)))
        assert torch.equal(evaluated, plain.embed(tokens).x)


def test_an_image_whose_grid_is_not_known_takes_that_of_training():
    pos = torch.rand(1, TOKENS, 2).double() * 2 - 1
    bare = Tokens.at(torch.zeros(BATCH, TOKENS, 8).double(), pos)
    encoding = zoo.encoding("cape", Dims(8, 2, 2, (5, 10)), global_shift=0.0, scale=1.0)
    moves = encoding._augment(pos, bare) - pos
    assert fills(moves[..., 0], 0.2)
    assert fills(moves[..., 1], 0.1)
    with pytest.raises(OptionError, match="training size"):
        zoo.encoding("cape", Dims(8, 2, 2))._augment(pos, bare)


# what is refused


def test_an_odd_dim_is_refused():
    with pytest.raises(OptionError, match="even dim, not 7"):
        zoo.encoding("cape", Dims(7, 1))


def test_a_centre_is_refused_under_a_causal_mask():
    dims, centred = Dims(32, 2), {"name": "cape", "centre": True}
    links = {"cape": lambda dims: zoo.encoding("cape", dims, centre=True)}
    with pytest.raises(OptionError, match="reads the whole sequence"):
        Transformer(dim=32, heads=2, depth=1, encoding=links).add_blocks(axes=1, causal=True)
    with pytest.raises(OptionError, match="reads the whole sequence"):
        zoo.Attention(dims, centred, causal=True)
    with pytest.raises(OptionError, match="reads the whole sequence"):
        zoo.Attention(dims, [centred, "rope"], causal=True)
    zoo.Attention(dims, centred)
    zoo.Attention(dims, "cape", causal=True)


# planted faults


class AugmentedEvaluation(CAPE):
    """Evaluation at positions of training."""

    def embed(self, tokens):
        self.training = True
        return super().embed(tokens)


class SwappedAxes(CAPE):
    """Waves of (column, row)."""

    def embed(self, tokens):
        return super().embed(tokens.replace(pos=tokens.pos.flip(-1)))


@pytest.mark.parametrize(("fault", "axes"), [(AugmentedEvaluation, 1), (SwappedAxes, 2)])
def test_planted_fault(fault, axes):
    sizes = (7,) if axes == 1 else (3, 4)
    index = grid(sizes, torch.zeros(0).double())
    pos = index if axes == 1 else 2 * (index + 0.5) / torch.tensor(sizes) - 1
    expected = (sinusoidal if axes == 1 else cape)(pos, 12)
    sound, planted = (cls(Dims(12, 2, axes)).double() for cls in (CAPE, fault))
    assert_close(embed(sound, index, sizes), expected)
    with pytest.raises(AssertionError, match="not close"):
        assert_close(embed(planted, index, sizes), expected)
