"""What training does to the positions of cape: how far they move, and what moves together."""

from __future__ import annotations

import math

import pytest
import torch

import zoo
from zoo.attention.chain import Chain
from zoo.attention.coordinates import apply_convention, grid, spacing
from zoo.attention.encoding import Dims
from zoo.attention.tokens import Tokens
from zoo.errors import OptionError

BATCH, TOKENS = 400, 12
GRID = (3, 4)


def tokens(axes=1, batch=BATCH, document=None):
    pos = grid((TOKENS,) if axes == 1 else GRID, torch.zeros(0).double())
    made = Tokens.at(torch.zeros(batch, TOKENS, 8, dtype=torch.float64), pos, document=document)
    return made if axes == 1 else made.replace(grid_size=torch.tensor([[GRID]]).double())


def moved(axes=1, batch=BATCH, document=None, **options):
    """Positions [B, N, P] that training makes of those of evaluation, and these."""
    still = {"global_shift": 0.0, "local_shift": 0.0, "scale": 1.0}
    encoding = zoo.encoding("cape", Dims(8, 2, axes), **{**still, **options})
    before = apply_convention(tokens(axes, batch, document), encoding.coordinates, None)
    return encoding._augment(before.pos, before), before.pos


def fills(values, edge):
    """Whether values look like U(-edge, edge)."""
    error = 5 * edge / math.sqrt(3 * values.numel())  # five standard errors of the mean
    return bool(
        values.abs().max() <= edge
        and values.abs().max() > 0.97 * edge
        and values.mean().abs() < error
    )


@pytest.mark.parametrize("axes", [1, 2])
def test_a_sample_is_shifted_as_a_whole(axes):
    after, before = moved(axes, global_shift=3.0)
    shifts = after - before  # [B, N, P]
    torch.testing.assert_close(shifts, shifts[:, :1].expand_as(shifts))
    assert fills(shifts[:, 0], 3.0)
    assert len(shifts[:, 0].unique()) == BATCH * axes  # each sample and axis by itself


def test_each_token_of_a_text_is_jittered_by_itself():
    after, before = moved(local_shift=0.5)
    assert fills(after - before, 0.5)
    assert len((after - before).unique()) == BATCH * TOKENS
    assert (after.diff(dim=1) > 0).all()  # the order stays


def test_jitter_of_an_image_is_measured_in_patches():
    after, before = moved(2, local_shift=0.5)
    for axis, size in enumerate(GRID):
        assert fills((after - before)[..., axis], 1 / size)  # half of 2 / size
    assert len((after - before).unique()) == BATCH * TOKENS * 2


@pytest.mark.parametrize("axes", [1, 2])
def test_a_sample_is_stretched_by_one_factor(axes):
    after, before = moved(axes, scale=1.4)
    factors = (after / before)[before.expand_as(after) != 0].view(BATCH, -1)
    torch.testing.assert_close(factors, factors[:, :1].expand_as(factors))
    assert fills(factors[:, 0].log(), math.log(1.4))


def test_what_is_shifted_is_stretched_too():
    after, _ = moved(global_shift=5.0, scale=1.4)
    start, step = after[:, 0, 0], after[:, 1, 0] - after[:, 0, 0]
    assert (start / step).abs().max() < 5
    assert start.abs().max() > 5


def test_samples_draw_for_themselves_though_positions_are_shared():
    encoding = zoo.encoding("cape", Dims(8, 2)).double().train()
    out = Chain.of(encoding).embed(tokens(batch=3)).x
    assert all((out[a] - out[b]).abs().max() > 0.01 for a, b in ((0, 1), (0, 2), (1, 2)))


def test_documents_of_a_row_are_shifted_together():
    after, before = moved(document=torch.tensor([0] * 6 + [1] * 6), global_shift=3.0)
    torch.testing.assert_close((after - before)[:, 0], (after - before)[:, -1])


@pytest.mark.parametrize("axes", [1, 2])
def test_evaluation_draws_nothing(axes):
    encoding, state = zoo.encoding("cape", Dims(8, 2, axes)).eval(), torch.get_rng_state()
    first, second = (Chain.of(encoding).embed(tokens(axes)).x for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_seed_repeats_what_training_draws():
    encoding, runs = zoo.encoding("cape", Dims(8, 2)).train(), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        runs.append(Chain.of(encoding).embed(tokens()).x)
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


@pytest.mark.parametrize("axes", [1, 2])
def test_without_augmentation_training_is_evaluation(axes):
    encoding = zoo.encoding("cape", Dims(8, 2, axes), global_shift=0.0, local_shift=0.0, scale=1.0)
    trained, evaluated = (
        Chain.of(encoding.train(mode)).embed(tokens(axes)).x for mode in (True, False)
    )
    assert torch.equal(trained, evaluated)
    if axes == 1:
        assert torch.equal(
            evaluated, Chain.of(zoo.encoding("sinusoidal", Dims(8, 2))).embed(tokens()).x
        )


def test_an_image_whose_grid_is_not_known_takes_that_of_training():
    pos = torch.rand(1, TOKENS, 2).double() * 2 - 1
    bare = Tokens.at(torch.zeros(BATCH, TOKENS, 8).double(), pos)
    encoding = zoo.encoding("cape", Dims(8, 2, 2, (5, 10)), global_shift=0.0, scale=1.0)
    moves = encoding._augment(pos, bare) - pos
    assert fills(moves[..., 0], 0.2)
    assert fills(moves[..., 1], 0.1)
    with pytest.raises(OptionError, match="training size"):
        zoo.encoding("cape", Dims(8, 2, 2))._augment(pos, bare)


@pytest.mark.parametrize("convention", ["index", "fraction", "growing", "symmetric"])
def test_neighbours_are_one_spacing_apart(convention):
    some = tokens(2)
    pos, step = apply_convention(some, convention, (6, 6)).pos, spacing(some, convention, (6, 6))
    torch.testing.assert_close(pos[:, 5] - pos[:, 0], step[:, 0])  # one row and one column on
