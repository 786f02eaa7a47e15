"""Probes read positions that were planted, and none where there are none."""

import pytest
import torch

from tests.planted_heads import build_decoder, plant_offset
from zoo.diagnosis.position_probes import RIDGE, measure_probes, score_probe


def draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("width", [8, 200], ids=["few channels", "more channels than tokens"])
def test_the_score_is_that_of_a_ridge_regression(width):
    """Both forms equal the regression with the penalty as further rows of least squares."""
    positions = torch.arange(12.0, dtype=torch.float64)[:, None]
    states = draw(5, 12, width)
    states[..., 0] += positions[:, 0]
    train, rest = states[:3].flatten(0, 1), states[3:].flatten(0, 1)
    targets, others = positions.repeat(3, 1), positions.repeat(2, 1)
    size = (train - train.mean(0)).square().mean().sqrt()
    rows = torch.cat(
        [
            (train - train.mean(0)) / size,
            (RIDGE * len(train)) ** 0.5 * torch.eye(width, dtype=torch.float64),
        ]
    )
    ends = torch.cat([targets - targets.mean(), torch.zeros(width, 1, dtype=torch.float64)])
    weights = torch.linalg.lstsq(rows, ends, driver="gelsd").solution
    predicted = targets.mean() + (rest - train.mean(0)) / size @ weights
    expected = 1 - (others - predicted).square().sum() / (others - others.mean()).square().sum()
    assert score_probe(states, positions) == pytest.approx(expected.item(), abs=1e-8)


def test_positions_are_read_where_they_are_and_not_from_noise():
    positions = torch.stack([torch.arange(10.0), torch.arange(10.0).flip(0)], dim=1).double()
    states = 0.1 * draw(8, 10, 6)
    assert score_probe(states, positions) < 0.2
    states[..., 1] += positions[:, 0]
    assert score_probe(states, positions) > 0.95


@torch.no_grad()
def test_a_causal_mask_reveals_positions_after_one_layer():
    """An even mean over all tokens so far, of which one is the first: it has 1 / (i + 1)."""
    model = build_decoder(1, 1, 48)
    layer = model.blocks[0].attn
    layer.v_proj.weight.copy_(torch.eye(48))
    layer.o_proj.weight.copy_(torch.eye(48))
    tokens = torch.randint(1, 16, (64, 12), generator=torch.Generator().manual_seed(0))
    tokens[:, 0] = 0
    before, after = measure_probes(model, (tokens,))
    assert (before.layers, after.layers) == (0, 1)
    # the input shows only which token is the first
    assert before.r2 < 0.4
    assert after.r2 > before.r2 + 0.1
    assert after.r2 > after.control + 0.2
    assert measure_probes(model, (tokens[:1],)) == ()


@torch.no_grad()
def test_a_control_is_as_good_only_if_positions_are_remembered():
    """A head that copies nothing leaves random states: neither probe explains anything."""
    model = build_decoder(1, 1, 48)
    plant_offset(model.blocks[0].attn, 0, 1, 48)
    tokens = torch.randint(16, (16, 12), generator=torch.Generator().manual_seed(0))
    for probe in measure_probes(model, (tokens,)):
        assert probe.r2 < 0.1
        assert probe.control < 0.1
