"""Planes of skew matrices without a read by the host: they rebuild the matrix, and give scores and gradients of the formula."""

from __future__ import annotations

import pytest
import torch
from generators import check_gradients
from literal.comrope_ap import comrope_ap
from literal.comrope_ld import comrope_ld

from zoo.encodings.common import skew_jacobi, spectral_rotation
from zoo.encodings.common.skew_jacobi import decompose_skew
from zoo.encodings.common.spectral_rotation import skew_part

ROUNDING = 3e-14
"""Error as a share of the norm of a matrix, of up to 16 channels."""


def build_turns(frequencies):
    """Return blockdiag(w (0 -1; 1 0)) [..., b, b]."""
    half = torch.diag_embed(torch.stack([frequencies, 0 * frequencies], -1).flatten(-2))
    lower = half.roll(1, dims=-2)
    return lower - lower.mT


def make_matrices(channels, count=200):
    """Return a dictionary of kinds of skew matrices [count, b, b]."""
    planes, double = channels // 2, torch.float64
    numbers = torch.randn(count, channels, channels, dtype=double)
    bases = torch.linalg.qr(numbers).Q
    steps = torch.arange(planes, dtype=double)

    def turn(*frequencies):
        turns = build_turns(torch.stack([one.expand(count) for one in frequencies], -1))
        return skew_part(bases @ turns @ bases.mT / 2)

    noise = torch.randn(planes, count, dtype=double)
    return {
        "random": skew_part(numbers),
        "small": skew_part(1e-30 * numbers),
        "sparse": skew_part(numbers * (torch.rand_like(numbers) < 0.3)),
        "integers": skew_part(torch.randint(-1, 2, numbers.shape).double()),
        "equal": turn(*torch.ones_like(steps)),
        "nearly equal": turn(*(1 + 1e-6 * noise)),
        "equal to rounding": turn(*(1 + 1e-12 * noise)),
        "in pairs": turn(*(1 + (steps // 2)[:, None] + 1e-9 * noise)),
        "one plane": turn(*(steps == 0).double()),
        "graded": turn(*(10 ** (-2 * steps))),
        "zero": torch.zeros(1, channels, channels, dtype=double),
        "in its planes": build_turns(-steps)[None],
        "circulant": skew_part(torch.eye(channels, dtype=double).roll(1, 0))[None],
    }


@pytest.mark.parametrize("channels", [2, 4, 6, 8, 10, 14, 16])
def test_planes_and_basis_are_those_of_the_matrix(channels):
    for kind, matrices in make_matrices(channels).items():
        frequencies, basis = decompose_skew(matrices)
        tolerance = ROUNDING * (torch.linalg.matrix_norm(matrices).max() + 1e-300)
        error = (basis @ build_turns(frequencies) @ basis.mT - matrices).abs().max()
        assert error <= tolerance, kind
        one = torch.eye(channels, dtype=torch.float64)
        assert (basis.mT @ basis - one).abs().max() <= ROUNDING, kind
        assert (frequencies >= 0).all(), kind
        assert (frequencies.diff(dim=-1) >= 0).all(), kind
        expected = torch.linalg.eigvalsh(1j * matrices)[..., channels // 2 :]
        assert (frequencies - expected).abs().max() <= tolerance, kind


@pytest.mark.parametrize("kind", ["random", "equal", "zero"])
@pytest.mark.parametrize(
    ("name", "literal"), [("comrope_ap", comrope_ap), ("comrope_ld", comrope_ld)]
)
def test_scores_and_gradients_are_those_of_the_formula(name, literal, kind, monkeypatch):
    monkeypatch.setattr(spectral_rotation, "spectrum", decompose_skew)
    check_gradients(name, literal, 2, kind)


def test_too_few_sweeps_give_nan(monkeypatch):
    monkeypatch.setattr(skew_jacobi, "SWEEPS_OF_8", 2)
    frequencies, _ = decompose_skew(make_matrices(8)["random"])
    assert frequencies.isnan().any()
    assert not decompose_skew(make_matrices(8)["in its planes"])[0].isnan().any()
