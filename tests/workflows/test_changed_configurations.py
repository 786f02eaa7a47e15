"""One changed field of a configuration: zoo computes what transformers does, or refuses and names it.

`python tests/benchmarks/configurations.py` tries all fields and values; this is a part of them.
"""

import importlib
import logging
import sys
import warnings
from pathlib import Path

import pytest

transformers = pytest.importorskip("transformers")

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
configurations = importlib.import_module("configurations")
sys.path.pop(0)

LONGER = {
    "rope_type": "yarn",
    "factor": 2.0,
    "attention_factor": 1.0,
    "original_max_position_embeddings": 32,
}
# Fields by which zoo was once silently wrong.
KNOWN = [
    ("llama", "is_causal", False),
    ("gpt2", "is_causal", False),
    ("gpt2", "tie_word_embeddings", False),
    ("bert", "is_causal", True),
    ("bert", "is_decoder", True),
    ("qwen2", "partial_rotary_factor", 0.5),
    ("llama", "rope_scaling", LONGER),
    ("vit", "image_size", [32, 64]),
    ("vit", "is_causal", True),
    ("dinov3_vit", "is_causal", True),
    ("stablelm", "is_causal", False),
]


@pytest.fixture(autouse=True)
def _quiet():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    logging.getLogger("zoo").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.getLogger("zoo").setLevel(logging.NOTSET)


@pytest.mark.parametrize(
    ("family", "name", "value"), [*KNOWN, *configurations.draw_changes(1)], ids=str
)
def test_a_changed_field_is_computed_or_refused_by_name(family, name, value):
    outcomes = configurations.try_change(family, name, value)
    is_tried = bool(outcomes) or (family, name, value) not in KNOWN
    assert is_tried, "transformers cannot run it"
    assert [one for one in outcomes if one.kind not in ("equal", "refused")] == []
