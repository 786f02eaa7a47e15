"""Receptive fields equal derivatives that are known, and what masks let through."""

import math

import pytest
import torch

import zoo
from tests.planted_heads import SHARPNESS, build_decoder, frequencies, plant_offset
from zoo.attention.chain import make_factory
from zoo.data.spec import TextSpec
from zoo.diagnosis.receptive_field import REACHED, accumulate, measure_fields
from zoo.models.decoder import Decoder

CLOSE = 1e-10


def attend(count, offset):
    """The weights of a planted head, row by row, from its formula."""
    rows = []
    for i in range(count):
        scores = [
            SHARPNESS / 48**0.5 * sum(math.cos((i - j - offset) * w) for w in frequencies(48))
            for j in range(i + 1)
        ]
        sizes = [math.exp(one - max(scores)) for one in scores]
        rows.append([size / sum(sizes) for size in sizes] + [0.0] * (count - i - 1))
    return torch.tensor(rows, dtype=torch.float64)


@torch.no_grad()
def test_the_gradient_of_a_planted_head_is_its_weights():
    """Heads that do not read content and copy states: the derivative is a product of matrices."""
    model = build_decoder(2, 1, 48)
    for block in model.blocks:
        plant_offset(block.attn, 0, 3, 48)
        block.attn.v_proj.weight.copy_(torch.eye(48))
        block.attn.o_proj.weight.copy_(2 * torch.eye(48))
    tokens = torch.randint(16, (3, 20), generator=torch.Generator().manual_seed(0))
    found = measure_fields(model, (tokens,))

    step = torch.eye(20, dtype=torch.float64) + 2 * attend(20, 3)
    for number, field in enumerate(found, start=1):
        row = torch.linalg.matrix_power(step, number)[-1].flip(0)
        expected = (row / row.sum()).cumsum(0)
        assert field.layers == number
        assert field.distances.tolist() == list(range(20))
        torch.testing.assert_close(field.cumulative, expected, atol=CLOSE, rtol=0)
        assert field.reach == next(d for d in range(20) if expected[d] >= REACHED)
        assert field.allowed == 19
    assert len(found) == 2


@pytest.mark.parametrize(("window", "expected"), [(4, [3, 6, 9]), (2, [1, 2, 3])])
def test_masks_let_a_window_through_for_each_layer(window, expected):
    torch.manual_seed(0)
    model = Decoder(
        TextSpec(length=32, vocabulary=build_decoder(1, 1, 16).embed_tokens.vocabulary),
        dim=16,
        depth=3,
        heads=2,
        window=window,
        encoding={"rope": make_factory("rope")},
    ).eval()
    found = measure_fields(model, (torch.randint(16, (2, 20)),))
    assert [field.allowed for field in found] == expected
    # no gradient comes from beyond
    for field in found:
        outside = field.cumulative[field.distances >= field.allowed]
        torch.testing.assert_close(outside, torch.ones_like(outside))


def test_sums_are_over_distances():
    sizes = torch.tensor([1.0, 9.0, 2.0, 8.0, 1e9])
    distances = torch.tensor([2.0, 0.0, 1.0, 1.0, 5.0])
    found = accumulate(sizes, distances, torch.tensor([True] * 4 + [False]))
    assert found.distances.tolist() == [0, 1, 2]
    assert found.cumulative.tolist() == pytest.approx([0.45, 0.95, 1.0])
    assert found.reach == 2


def test_images_reach_from_the_middle():
    model = zoo.build_model(zoo.load_recipe("vit_none", {"model.depth": 2, "model.dim": 24}))
    found = measure_fields(model.eval(), (torch.randn(2, 1, 28, 28),))
    assert [field.layers for field in found] == [1, 2]
    assert all(field.allowed == field.distances[-1] for field in found)
    assert all(parameter.grad is None for parameter in model.parameters())


@torch.no_grad()
def test_a_plain_model_of_transformers_has_fields_too():
    transformers = pytest.importorskip("transformers")
    from zoo.diagnosis.equipped_model import BoundModel
    from zoo.integrations.equip import observe_attention

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = transformers.LlamaForCausalLM(config).eval().double()
    ids = torch.randint(50, (1, 12))
    with observe_attention(model):
        found = measure_fields(BoundModel(model, {"input_ids": ids}), ())
    assert [field.layers for field in found] == [1, 2, 3]

    # the derivative of the logits of the last token, in full
    states = model.get_input_embeddings()(ids)

    def compute(x):
        return model(inputs_embeds=x).logits[0, -1]

    jacobian = torch.autograd.functional.jacobian(compute, states)[:, 0]  # [V, N, D]
    exact = jacobian.square().sum((0, 2)).sqrt().flip(0)
    exact = (exact / exact.sum()).cumsum(0)
    # one random direction for one sample: near, and equal at the end
    torch.testing.assert_close(found[-1].cumulative, exact, atol=0.1, rtol=0)
