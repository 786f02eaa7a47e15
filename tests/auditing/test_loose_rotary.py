"""`zoo.audit_rotary`: a rotary layer alone against a configuration."""

import planted
import pytest
import torch
from transformers import LlamaConfig

import zoo

CONFIG = LlamaConfig(hidden_size=48, num_attention_heads=4, max_position_embeddings=4096)


def compute_frequencies(base=10_000.0, width=12):
    return base ** (-torch.arange(0, width, 2).double() / width)


def make_complex(base=10_000.0, change=lambda positions: positions):
    def angles(positions):
        turns = change(positions)[..., None].double() * compute_frequencies(base)
        return torch.polar(torch.ones_like(turns), turns)

    return angles


def make_turning(base=10_000.0, *, keys=True):
    """Make a function of queries, keys and positions that turns halves."""

    def turn(q, k, positions):
        angles = positions[:, None, :, None].double() * compute_frequencies(base)
        cos, sin = torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()

        def rotate(x):
            first, second = x.chunk(2, -1)
            return (x * cos + torch.cat([-second, first], -1) * sin).to(x.dtype)

        return rotate(q), rotate(k) if keys else k

    return turn


def test_sound_layers_are_kept():
    for layer in (planted.build_decoder().model.rotary_emb, make_complex(), make_turning()):
        report = zoo.audit_rotary(layer, CONFIG)
        assert report.is_sound, str(report)


@pytest.mark.parametrize(
    ("layer", "explanation"),
    [
        (make_complex(500_000.0), "base"),
        (make_complex(change=lambda p: p % 3_001), "table_wraps"),
        (make_complex(change=lambda p: p.clamp(max=2_000)), "table_ends"),
        (make_complex(change=lambda p: p.bfloat16()), "bfloat16_positions"),
        (make_complex(change=lambda p: p / p.shape[-1]), "length_of_call"),
        (make_turning(500_000.0), "base"),
        (make_turning(keys=False), "keys_not_turned"),
    ],
)
def test_faults_are_explained(layer, explanation):
    (result,) = zoo.audit_rotary(layer, CONFIG).broken
    assert result.explanation == explanation, result.remark


@pytest.mark.parametrize("kind", ["yarn", "longrope"])
def test_rules_that_scale_are_those_of_zoo(kind):
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    entries = {**planted.YARN, "rope_type": kind}
    if kind == "longrope":
        entries |= {"short_factor": [1.0] * 6, "long_factor": [1.0, 1.5, 2.0, 3.0, 5.0, 8.0]}
    config = LlamaConfig(
        hidden_size=48, num_attention_heads=4, max_position_embeddings=4096, rope_parameters=entries
    )
    layer = LlamaRotaryEmbedding(config)
    assert zoo.audit_rotary(layer, config).is_sound
    layer.attention_scaling = 1.0
    (result,) = zoo.audit_rotary(layer, config).broken
    assert result.explanation == "attention_factor"


def test_layers_that_turn_nothing_are_refused():
    with pytest.raises(zoo.RecipeError, match="no call with a rotation"):
        zoo.audit_rotary(torch.nn.Linear(12, 12), CONFIG)
