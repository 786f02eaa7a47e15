"""The entries of a configuration give the frequencies and the factor that transformers computes."""

import math
from functools import partial

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

transformers = pytest.importorskip("transformers")

from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # noqa: E402

import zoo  # noqa: E402
from zoo.errors import OptionError  # noqa: E402
from zoo.integrations.rope_parameters import ENTRIES, read_rope_parameters, write_rope_parameters  # noqa: E402

HEAD_DIMS = (4, 16, 64, 128)
LENGTHS = (64, 2048, 32768)
optional = partial(st.one_of, st.none())


def draw_numbers(low, high):
    return st.floats(low, high, width=32).map(lambda one: round(one, 4))


@st.composite
def draw_parameters(draw):
    """Draw a head dim, a model length, the length of a text, and the entries of a rotation."""
    head_dim, length = draw(st.sampled_from(HEAD_DIMS)), draw(st.sampled_from(LENGTHS))
    kind = draw(st.sampled_from([*ROPE_INIT_FUNCTIONS]))
    entries = {"rope_type": kind, "rope_theta": draw(draw_numbers(500, 1e6))}
    entries["factor"] = draw(draw_numbers(1, 64))
    if kind in ("yarn", "llama3", "longrope"):
        entries["original_max_position_embeddings"] = length // draw(st.sampled_from([1, 2, 8]))
    if kind == "yarn":
        entries |= {
            "beta_fast": draw(optional(draw_numbers(8, 64))),
            "beta_slow": draw(optional(draw_numbers(0.5, 4))),
            "truncate": draw(st.booleans()),
            "mscale": draw(optional(draw_numbers(0, 2))),
            "mscale_all_dim": draw(optional(draw_numbers(0, 2))),
        }
    if kind == "longrope":
        divisors = st.lists(draw_numbers(1, 64), min_size=head_dim // 2, max_size=head_dim // 2)
        entries |= {"short_factor": draw(divisors), "long_factor": draw(divisors)}
    if kind in ("yarn", "longrope"):
        entries["attention_factor"] = draw(optional(draw_numbers(0.5, 2)))
        # transformers computes it of two lengths
        entries["factor"] = draw(optional(st.just(entries["factor"])))
    if kind == "llama3":
        low = draw(draw_numbers(0.25, 2))
        entries |= {"low_freq_factor": low, "high_freq_factor": low + draw(draw_numbers(0.25, 8))}
    if kind == "proportional":
        entries["partial_rotary_factor"] = draw(st.sampled_from([0.25, 0.3, 0.5, 0.75, 1.0]))
    return head_dim, length, draw(st.sampled_from([length // 2, length, 2 * length])), entries


@settings(max_examples=200, derandomize=True, deadline=None, suppress_health_check=[*HealthCheck])
@given(draw_parameters())
def test_frequencies_and_factors_are_those_of_transformers(drawn):
    head_dim, length, text, entries = drawn
    config = transformers.LlamaConfig(
        hidden_size=head_dim,
        num_attention_heads=1,
        head_dim=head_dim,
        max_position_embeddings=length,
        rope_parameters=dict(entries),
    )
    right, factor = ROPE_INIT_FUNCTIONS[entries["rope_type"]](config, "cpu", seq_len=text)

    options = read_rope_parameters(entries, length)
    if entries["rope_type"] in ("dynamic", "longrope"):
        options["scaling"]["length"] = text
    rope = zoo.encoding("rope", zoo.Dims(head_dim, 1, length=length), **options)
    frequencies = rope.wave_vectors(torch.zeros((), dtype=torch.float64)).flatten()
    torch.testing.assert_close(frequencies, right.double(), atol=1e-6, rtol=0)
    # The slowest are tiny; a float32 power is off by some units in the last place.
    torch.testing.assert_close(frequencies, right.double(), atol=0, rtol=5e-6)
    cosines = rope.compute_rotation(torch.zeros(1, 1, 1, dtype=torch.float64))[0][..., 0]
    assert abs(float(cosines.max()) - factor) < 1e-6

    # What is written is read again as it was.
    scaling = options["scaling"]
    written = write_rope_parameters(options["base"], scaling["rule"], scaling)
    again = read_rope_parameters(written, length)
    assert again == {**options, "scaling": {k: v for k, v in scaling.items() if k != "length"}}


def test_plain_entries_have_no_rule():
    assert read_rope_parameters({}, 64) == {"base": 10000.0}
    plain = write_rope_parameters(500.0)
    assert plain == {"rope_type": "default", "rope_theta": 500.0}
    assert read_rope_parameters(plain, 64) == {"base": 500.0}


def test_every_kind_of_transformers_is_read():
    assert ENTRIES.keys() == {"default", *ROPE_INIT_FUNCTIONS}


@pytest.mark.parametrize("kind", ENTRIES)
def test_an_entry_that_nobody_reads_is_named(kind):
    with pytest.raises(OptionError, match=f"mrope_section=.* is no entry of rope_type {kind}"):
        read_rope_parameters({"rope_type": kind, "mrope_section": [2, 2]}, 64)


def test_another_kind_is_named():
    with pytest.raises(OptionError, match="rope_type is ntk; rope has default, linear"):
        read_rope_parameters({"type": "ntk", "factor": 2.0}, 64)


def test_former_names_are_read():
    entries = {"type": "su", "short_factor": [1.0], "long_factor": [2.0]}
    scaling = read_rope_parameters(entries, 64)["scaling"]
    assert (scaling["rule"], scaling["original"], scaling["factor"]) == ("longrope", 64, 1.0)


def test_numbers_of_json_are_options():
    entries = {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 32.0}
    scaling = read_rope_parameters(entries | {"beta_fast": 0, "mscale": 1}, 64)["scaling"]
    assert scaling == {"rule": "yarn", "factor": 4, "original": 32}
    rope = zoo.encoding("rope", zoo.Dims(16, 1), scaling=scaling)
    assert rope.resolved.sharpening == pytest.approx(0.1 * math.log(4) + 1)
