"""Tokens put in other places."""

import pytest
import torch
from language import decoder, text

import zoo
from zoo.attention import Dims, Tokens
from zoo.diagnostics.position_ablation import CHANGES, apply_change, change_positions
from zoo.errors import OptionError

GRID = torch.tensor([[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]).float()


def image():
    """A class token in the middle, and 2 x 3 patches."""
    index = torch.cat([torch.tensor([[0.5, 1.0]]), GRID])
    placed = torch.arange(7) > 0
    return Tokens.at(torch.zeros(2, 7, 4), index, placed).replace(
        grid_size=torch.tensor([[[2.0, 3.0]]])
    )


def passages():
    """Two documents and padding, then one document."""
    document = torch.tensor([[0, 0, 0, 1, 1, -1], [0, 0, 0, 0, 0, 0]])
    index = torch.tensor([[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 4, 5]]).float()[..., None]
    return Tokens.at(torch.zeros(2, 6, 4), index, None, document, ordered=True)


def places(tokens, name):
    return apply_change(tokens, CHANGES[name]).index


@pytest.mark.parametrize("name", CHANGES)
def test_a_class_token_stays_and_order_is_not_claimed(name):
    found = apply_change(image(), CHANGES[name])
    assert found.index[0, 0].tolist() == [0.5, 1.0]
    assert found.pos is found.index
    assert not apply_change(passages(), CHANGES[name]).ordered


def test_shuffling_deals_out_the_same_places():
    found = places(image(), "shuffled")
    assert found.shape == (1, 7, 2)
    assert sorted(found[0, 1:].tolist()) == GRID.tolist()
    assert found[0, 1:].tolist() != GRID.tolist()
    assert torch.equal(found, places(image(), "shuffled"))


def test_shuffling_keeps_documents_apart():
    found = places(passages(), "shuffled")[..., 0]
    assert sorted(found[0, :3].tolist()) == [0, 1, 2]
    assert sorted(found[0, 3:5].tolist()) == [0, 1]
    assert sorted(found[1].tolist()) == [0, 1, 2, 3, 4, 5]
    assert found[1].tolist() != [0, 1, 2, 3, 4, 5]


def test_shuffling_leaves_the_random_state_alone():
    before = torch.get_rng_state()
    places(image(), "shuffled")
    assert torch.equal(torch.get_rng_state(), before)


def test_shifting_adds_half_the_grid_or_half_the_document():
    assert torch.equal(places(image(), "shifted")[0, 1:], GRID + torch.tensor([1.0, 2.0]))
    found = places(passages(), "shifted")[..., 0]
    assert found.tolist() == [[2, 3, 4, 1, 2, 1], [3, 4, 5, 6, 7, 8]]


def test_reversing_reads_each_axis_from_its_end():
    assert places(image(), "reversed")[0, 1:].tolist() == GRID.flip(0).tolist()
    assert places(passages(), "reversed")[..., 0].tolist() == [
        [2, 1, 0, 1, 0, 0],
        [5, 4, 3, 2, 1, 0],
    ]


def test_zeroing_puts_all_at_the_origin():
    assert places(image(), "zeroed")[0, 1:].count_nonzero() == 0
    assert places(passages(), "zeroed").count_nonzero() == 0


def test_what_follows_remembered_text_is_turned_in_place():
    tokens = Tokens.at(torch.zeros(1, 3, 4), torch.tensor([[6.0], [7.0], [8.0]]))
    assert places(tokens, "reversed")[0, :, 0].tolist() == [8, 7, 6]
    assert places(tokens, "shifted")[0, :, 0].tolist() == [8, 9, 10]


ORDER = (
    "none",
    "fox",
    "cope",
    "stickbreaking",
    "path",
    "selective_rope",
    "carope",
    "grape_m_contextual",
)
RELATIVE = ("rope", "xpos", "alibi", "kerple", "t5", "shaw", "transformer_xl", "tape")


@pytest.mark.parametrize("encoding", [*RELATIVE, *ORDER])
def test_a_model_is_moved_and_let_go(encoding):
    model, inputs = decoder(encoding), text()
    before = model(inputs)
    with change_positions(model, CHANGES["shuffled"]):
        inside = model(inputs)
    assert torch.equal(before, inside) is (encoding in ORDER)
    assert torch.equal(before, model(inputs))


@pytest.mark.parametrize("encoding", RELATIVE)
def test_what_is_relative_does_not_see_a_shift(encoding):
    model, inputs = decoder(encoding).double(), text()
    before = model(inputs)
    with change_positions(model, CHANGES["shifted"]):
        assert torch.allclose(model(inputs), before)
    with change_positions(model, CHANGES["zeroed"]):
        assert not torch.allclose(model(inputs), before)


def test_a_table_that_is_too_short_refuses():
    with (
        change_positions(model := decoder("learned"), CHANGES["shifted"]),
        pytest.raises(OptionError, match="12"),
    ):
        model(text())


def test_a_model_that_is_no_transformer_is_refused():
    with (
        pytest.raises(OptionError, match="the model has no encodings of zoo"),
        change_positions(zoo.Attention(Dims(16, 2), "rope"), CHANGES["zeroed"]),
    ):
        pass
