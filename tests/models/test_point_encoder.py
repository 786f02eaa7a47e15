"""The transformer for points: laws over all encodings that read real coordinates."""

import pytest
import torch
from reports import compute_measures

import zoo
from zoo.attention.chain import make_factory
from zoo.data.spec import PointSpec
from zoo.diagnosis.inputs import capture_attention
from zoo.diagnosis.report import draw_profiles
from zoo.diagnostics.encoding_panels import draw_encodings
from zoo.diagnostics.token_layout import find_layout
from zoo.errors import OptionError
from zoo.models.point_encoder import PointEncoder
from zoo.options import Choice

BLOCKS = {"comrope_ap": 2, "comrope_ld": 2, "liere": 4}
CASES = [
    (name, axes)
    for name in zoo.encoding_names()
    for axes in zoo.encoding_class(name).point_axes
    if axes in (1, 2, 3, 6)
]
each = pytest.mark.parametrize(("name", "axes"), CASES)


def make_model(name, axes, **options):
    """Make a model in float64 with moved weights, so that its head is not zero."""
    torch.manual_seed(0)
    choice = Choice(name, {"block": BLOCKS[name]} if name in BLOCKS else {})
    spec = PointSpec(2, axes, 9, classes=3)
    model = PointEncoder(
        spec, dim=24, depth=1, heads=2, encoding={name: make_factory(choice)}, **options
    )
    model = model.double().requires_grad_(False)
    for parameter in model.parameters():
        parameter += 0.1 * torch.randn_like(parameter)
    return model


def draw_points(axes, batch=2, count=5):
    """Draw features [B, N, 2] and coordinates [B, N, P]."""
    x = torch.randn(batch, count, 2, dtype=torch.float64)
    return x, 3 * torch.randn(batch, count, axes, dtype=torch.float64)


def states(model, *points):
    return model.run_blocks(model.tokens(*points)).x


@each
def test_permuted_points_permute_the_states_and_keep_the_output(name, axes):
    model, (x, pos) = make_model(name, axes), draw_points(axes)
    order = torch.randperm(5)
    moved = x[:, order], pos[:, order]
    torch.testing.assert_close(states(model, *moved), states(model, x, pos)[:, order])
    torch.testing.assert_close(model(*moved), model(x, pos))


@each
def test_shifted_points_change_nothing_where_declared(name, axes):
    model, (x, pos) = make_model(name, axes), draw_points(axes)
    change = (model(x, pos + torch.randn(axes) * 10) - model(x, pos)).abs().max()
    # one rotation that shares all generators commutes with itself
    commutes = name == "liere" and axes == 1
    assert (change < 1e-9) == (model.chains[0].shift_invariant or commutes)


@each
@pytest.mark.parametrize("pool", ["mean", "class"])
def test_padding_changes_nothing(name, axes, pool):
    model, (x, pos) = make_model(name, axes, pool=pool), draw_points(axes)
    mask = torch.tensor([[True] * 3 + [False] * 2, [True, False, True, True, False]])
    padded = [one.masked_fill(~mask[..., None], torch.nan) for one in (x, pos)]
    alone = [model(x[n, mask[n]][None], pos[n, mask[n]][None]) for n in range(2)]
    torch.testing.assert_close(model(*padded, mask), torch.cat(alone))


@pytest.mark.parametrize("name", [name for name in zoo.encoding_names() if (name, 1) in CASES])
def test_an_encoding_of_points_sees_when_they_are(name):
    model, (x, pos) = make_model(name, 1), draw_points(1)
    change = (model(x, pos.flip(1)) - model(x, pos)).abs().max()
    assert (change > 1e-6) == (name != "none")


def test_points_of_another_shape_are_refused():
    model, (x, pos) = make_model("rope_mixed", 2), draw_points(2)
    with pytest.raises(OptionError, match=r"pos has the shape \[2, 5, 1\]"):
        model(x, pos[..., :1])
    with pytest.raises(OptionError, match=r"x has the shape \[2, 5, 1\]"):
        model(x[..., :1], pos)


@each
def test_a_diagnosis_names_axes_and_units_of_the_data(name, axes):
    model, (x, pos) = make_model(name, axes, pool="class"), draw_points(axes)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    inputs = x, pos, mask
    layout = find_layout(model, inputs, 8)
    assert (layout.unit, layout.grid, layout.extra) == ("points", (5,), ("class",))

    seen = capture_attention(model, inputs, layout, None)
    panels = draw_encodings(model, inputs, seen.layers, layout.grid)
    words = " ".join(f"{panel.title} {panel.caption} {vars(panel)}" for panel in panels)
    assert "token" not in words
    assert "patch" not in words
    (profile,) = draw_profiles(seen.layers)
    between = (pos[:, :, None] - pos[:, None]).norm(dim=-1)
    reach = between[mask[:, :, None] & mask[:, None]].max()
    assert profile.x_values.max() == pytest.approx(float(reach), rel=0.03)
    (distance,) = (
        one for one in compute_measures(seen.layers, seen.zeroed, None) if one.name == "distance"
    )
    assert distance.unit == "units"
