"""Text parts of vision-language models, whose tokens have positions of time, height and width."""

from __future__ import annotations

import importlib

import pytest
import torch

import zoo
from zoo.errors import OptionError

KINDS = {
    "qwen2_vl": ("Qwen2VLText", [2, 3, 3], "blocks"),
    "qwen2_5_vl": ("Qwen2_5_VLText", [2, 3, 3], "blocks"),
    "qwen3_vl": ("Qwen3VLText", [4, 2, 2], "interleaved"),
}
COUNT = 12


def make(kind):
    name, sections, _ = KINDS[kind]
    parts = (
        getattr(importlib.import_module(f"transformers.models.{kind}.{module}_{kind}"), name + what)
        for module, what in (("configuration", "Config"), ("modeling", "Model"))
    )
    config_class, model_class = parts
    torch.manual_seed(0)
    entries = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": sections}
    config = config_class(
        vocab_size=99,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        rope_parameters=entries,
    )
    return model_class(config).eval()


def draw():
    """Draw two texts and the positions of their tokens [3, 2, N]."""
    return torch.randint(3, 99, (2, COUNT)), torch.randint(0, 40, (3, 2, COUNT))


@torch.no_grad()
def run(model, ids, positions, **more):
    return model(input_ids=ids, position_ids=positions, **more)


def decode(model, ids, positions):
    cache, outputs = None, []
    for place in range(0, COUNT, 5):
        rows = slice(place, place + 5)
        found = run(model, ids[:, rows], positions[..., rows], cache=cache, use_cache=True)
        cache = found.cache
        outputs.append(found.last_hidden_state)
    return torch.cat(outputs, 1)


def pad(model, ids, positions):
    """Run texts after padding on the left."""
    zeros = torch.zeros(2, 3, dtype=torch.long)
    mask = torch.cat([zeros, torch.ones_like(ids)], 1)
    padded = torch.cat([zeros.expand(3, -1, -1), positions], -1)
    found = run(model, torch.cat([zeros, ids], 1), padded, attention_mask=mask)
    return found.last_hidden_state[:, 3:]


def compute(model, ids, positions):
    whole = run(model, ids, positions).last_hidden_state
    return [whole, decode(model, ids, positions), pad(model, ids, positions)]


@pytest.mark.parametrize("kind", KINDS)
def test_own_and_mrope_equal_the_model_at_different_coordinates(kind):
    model, (ids, positions) = make(kind), draw()
    expected = compute(model, ids, positions)
    _, sections, layout = KINDS[kind]
    for encoding in ("own", {"name": "mrope", "sections": sections, "layout": layout}):
        report = zoo.equip(model, encoding)
        assert report.encoding.startswith(f"mrope(sections={sections}, layout={layout}")
        for found, right in zip(compute(model, ids, positions), expected, strict=True):
            torch.testing.assert_close(found, right, atol=1e-5, rtol=1e-5)
        zoo.unequip(model)
    assert torch.equal(run(model, ids, positions).last_hidden_state, expected[0])


def test_other_sections_change_the_output():
    model, (ids, positions) = make("qwen3_vl"), draw()
    before = run(model, ids, positions).last_hidden_state
    zoo.equip(model, {"name": "mrope", "sections": [2, 3, 3], "layout": "blocks"})
    assert (run(model, ids, positions).last_hidden_state - before).abs().max() > 0.1


@pytest.mark.parametrize("encoding", ["alibi", {"name": "rope", "base": 100.0}])
def test_an_encoding_of_one_position_refuses_three_that_differ(encoding):
    model, (ids, positions) = make("qwen2_vl"), draw()
    zoo.equip(model, encoding)
    same = positions[:1].expand(3, -1, -1)
    expected = run(model, ids, positions[0]).last_hidden_state
    torch.testing.assert_close(run(model, ids, same).last_hidden_state, expected)
    with pytest.raises(OptionError, match="reads one; equip the model with mrope or own"):
        run(model, ids, positions)


def test_equal_positions_need_no_axes():
    model, (ids, _) = make("qwen2_vl"), draw()
    before = model(input_ids=ids).last_hidden_state
    zoo.equip(model, "own")
    torch.testing.assert_close(model(input_ids=ids).last_hidden_state, before, atol=1e-5, rtol=1e-5)


def test_angles_are_those_of_transformers_up_to_their_rounding():
    model = make("qwen3_vl")
    places = torch.tensor([[0, 1, 100, 5000], [3, 7, 200, 4000], [5, 2, 300, 3000]])
    cos, sin = model.rotary_emb(torch.zeros(1), places[:, None])
    encoding = zoo.encoding("mrope", zoo.Dims(64, 4, 3), sections=[4, 2, 2])
    (table,) = encoding.compute_rotation(places.T[None].double())
    found = torch.view_as_complex(table[0, 0].contiguous())
    expected = torch.complex(cos[0, :, :8].double(), sin[0, :, :8].double())
    errors = (found / expected).angle().abs()  # [N, pairs]
    bound = 2.0**-22 * places.amax(0)[:, None] + 2.0**-22
    assert (errors <= bound).all()
