"""What learned parameters are to an encoding of other sizes: it computes what the one they are of computed."""

import pytest
import torch

import zoo
from zoo.attention.encoding import Dims

TEXT = Dims(24, 2, length=6, depth=2)
IMAGE, CLIP = Dims(24, 2, 2, (3, 4), depth=2), Dims(24, 2, 3, (2, 3, 4), depth=2)
BLOCKS = {"comrope_ap": 2, "comrope_ld": 4, "liere": 4}


def made(name, dims, **options):
    return zoo.encoding(
        name, dims, **({"block": BLOCKS[name]} if name in BLOCKS else {}), **options
    )


def carry(there, here):
    """Fill an encoding from another, and name what it does not take."""
    left = []
    for name, parameter in here.named_parameters():
        value = dict(there.named_parameters())[name].detach()
        found = here.adapt_parameter(name, value, there)
        if found is None or found.shape != parameter.shape:
            left.append(name)
        else:
            parameter.data.copy_(found)
    return left


def scores(encoding, pos, causal=False):
    torch.manual_seed(1)
    q, k, x = (
        torch.randn(1, 2, len(pos), 12),
        torch.randn(1, 2, len(pos), 12),
        torch.randn(1, len(pos), 24),
    )
    return zoo.scores(encoding, q, k, pos, x=x, causal=causal)


@pytest.mark.parametrize("name", zoo.encoding_names())
def test_parameters_of_the_same_sizes_are_taken_as_they_are(name):
    for dims in (TEXT, IMAGE, CLIP):
        if dims.axes in zoo.encoding_class(name).axes:
            there, here = made(name, dims), made(name, dims)
            for key, value in there.named_parameters():
                assert here.adapt_parameter(key, value, there) is value


@pytest.mark.parametrize("name", ["rope_mixed", "liere", "comrope_ld"])
@pytest.mark.parametrize(
    ("there", "here"), [(IMAGE, CLIP), (CLIP, IMAGE)], ids=["to clips", "to images"]
)
def test_a_rotation_goes_by_rows_and_columns_as_before(name, there, here):
    trained, other = made(name, there), made(name, here)
    assert carry(trained, other) == []
    pos = torch.rand(5, 2) * 3
    placed = {2: pos, 3: torch.cat([torch.zeros(5, 1), pos], dim=1)}
    if here is CLIP:  # whatever the frames are
        placed[3][:, 0] = torch.arange(5.0)
    torch.testing.assert_close(
        scores(other, placed[here.axes]), scores(trained, placed[there.axes])
    )


def test_blocks_dealt_to_other_axes_are_left():
    assert carry(made("comrope_ap", IMAGE), made("comrope_ap", CLIP)) == ["generators"]


@pytest.mark.parametrize("name", ["rope_mixed", "liere", "comrope_ld", "learned"])
def test_a_text_has_nothing_for_a_grid(name):
    assert carry(made(name, TEXT), made(name, IMAGE))


@pytest.mark.parametrize(
    ("name", "option", "sizes"),
    [("shaw", "max_distance", (3, 5)), ("cope", "max_positions", (3, 5))],
)
def test_a_longer_table_goes_on_with_its_last_rows(name, option, sizes):
    short, long = (made(name, TEXT, **{option: size}) for size in sizes)
    torch.nn.init.normal_(next(short.parameters()))
    assert carry(short, long) == []
    pos = torch.arange(9.0)[:, None]
    torch.testing.assert_close(scores(long, pos, causal=True), scores(short, pos, causal=True))
    back = made(name, TEXT, **{option: sizes[0]})
    carry(long, back)
    torch.testing.assert_close(next(back.parameters()), next(short.parameters()))


@pytest.mark.parametrize("name", ["learned", "tupe"])
def test_a_text_of_another_length_has_the_rows_that_both_have(name):
    trained, longer, shorter = (
        made(name, Dims(24, 2, length=length, depth=2)) for length in (6, 8, 4)
    )
    initial = longer.table.detach().clone()
    assert carry(trained, longer) == carry(trained, shorter) == []
    assert torch.equal(longer.table, torch.cat([trained.table, initial[6:]]))
    assert torch.equal(shorter.table, trained.table[:4])
