"""The bidirectional language model: what a token depends on, padding, the mask and the class token."""

import pytest
import torch
from language import PASSAGES, encoder, links, lively, text

from zoo.models.encoder import Encoder

ENCODINGS = ["none", "rope", "learned", "sinusoidal", "comrope_ld"]
each = pytest.mark.parametrize("name", ENCODINGS)
with_and_without = pytest.mark.parametrize("class_token", [False, True])


@each
def test_tokens_see_both_sides(name):
    model, inputs = encoder(name), text()
    other = inputs.clone()
    other[:, 5] = (other[:, 5] + 1) % 11
    changed = (model(other) - model(inputs)).abs().amax(-1)
    assert changed.min() > 1e-6


@each
@with_and_without
@pytest.mark.parametrize(("left", "right"), [(4, 0), (0, 4), (3, 1)])
def test_padding_changes_nothing(name, class_token, left, right):
    model, inputs = encoder(name, cls_token=class_token), text(1, 8)
    padded = torch.cat([text(1, left), inputs, text(1, right)], dim=1)
    documents = torch.tensor([[-1] * left + [7] * 8 + [-1] * right])
    torch.testing.assert_close(
        model(padded, documents)[:, left : left + 8], model(inputs), atol=1e-5, rtol=1e-4
    )


@each
def test_packed_documents_are_the_documents_alone(name):
    model, inputs = encoder(name), text(1)
    packed = model(inputs, torch.tensor([[0] * 5 + [1] * 7]))
    torch.testing.assert_close(
        packed, torch.cat([model(inputs[:, :5]), model(inputs[:, 5:])], dim=1)
    )


def test_places_are_fractions_of_their_own_document():
    documents = torch.tensor([[0] * 3 + [1] * 5 + [-1] * 4, [0] * 12])
    extent = encoder("none").tokens(text(), documents).grid_size
    assert extent[..., 0].tolist() == [[3] * 3 + [5] * 5 + [4] * 4, [12] * 12]
    assert encoder("none").tokens(text()).grid_size.tolist() == [[[12]]]


def test_the_mask_is_read_and_never_predicted():
    model = encoder("rope")
    assert model.mask_token == 11
    assert model(torch.full((1, 12), model.mask_token)).shape == (1, 12, 11)


def test_the_class_token_has_no_place_and_no_output():
    model = encoder("rope", cls_token=True)
    tokens = model.tokens(text(), torch.tensor([[0] * 12, [3] * 10 + [-1] * 2]))
    assert tokens.has_position[0].tolist() == [False] + [True] * 12
    assert tokens.document[:, 0].tolist() == [0, 3]
    assert tokens.index[0, :3, 0].tolist() == [0, 0, 1]
    assert model(text()).shape == (2, 12, 11)


def test_the_class_token_is_seen_and_trained():
    model = encoder("rope", cls_token=True)
    model(text()).sum().backward()
    assert model.cls_token.grad.abs().max() > 0
    assert all(p.grad is not None for p in model.parameters())


# passages


def classifier(*names, **options):
    model = Encoder(
        PASSAGES, **{"dim": 16, "depth": 2, "heads": 2, "encoding": links(*names), **options}
    )
    return lively(model)


@each
@with_and_without
def test_padding_changes_no_class(name, class_token):
    model, inputs = classifier(name, cls_token=class_token), text(2, 7)
    padded = torch.nn.functional.pad(inputs, (0, 5), value=-1)
    assert model(padded).shape == (2, 3)
    torch.testing.assert_close(model(padded), model(inputs), atol=1e-5, rtol=1e-4)


@with_and_without
def test_a_class_depends_on_every_token_and_on_their_order(class_token):
    model, inputs = classifier("rope", cls_token=class_token), torch.arange(11)[None]
    for other in (inputs.roll(1, 1), inputs.where(inputs != 10, 0), inputs.where(inputs != 0, 10)):
        assert (model(other) - model(inputs)).abs().max() > 1e-4


def test_a_class_is_read_off_the_mean_of_what_is_no_padding():
    model, inputs = classifier("none"), text(1, 5)
    x = model.run_blocks(model.tokens(inputs)).x
    padded = torch.nn.functional.pad(inputs, (0, 3), value=-1)
    torch.testing.assert_close(model(padded), model.head(x.mean(1)), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("options", [{}, {"cls_token": True}, {"tie_embeddings": False}])
def test_all_of_a_classifier_is_trained(options):
    model = classifier("rope", **options)
    model(text()).square().sum().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in model.parameters())


def test_a_text_of_nothing_has_a_finite_class():
    model = classifier("alibi", cls_token=True)
    assert model(torch.full((1, 4), -1)).isfinite().all()


def test_a_classifier_begins_as_a_model_of_masked_tokens():
    fills, names = encoder("rope"), classifier("rope").state_dict()
    assert {name: value.shape for name, value in fills.state_dict().items()}.items() <= {
        name: value.shape for name, value in names.items()
    }.items()
    assert names.keys() - fills.state_dict().keys() == {"head.weight", "head.bias"}
