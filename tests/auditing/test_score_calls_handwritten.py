"""`zoo.audit` explains faults in classes that no library knows, where there is no sound copy."""

import handwritten
import pytest

import zoo

FAULTS = [
    ("complex", "base", "rotary"),
    ("complex", "exponents", "rotary"),
    ("complex", "table_wraps", "rotary"),
    ("complex", "table_ends", "rotary"),
    ("complex", "length_of_call", "rotary"),
    ("complex", "bfloat16_positions", "rotary"),
    ("complex", "keys_not_turned", "rotary"),
    ("function", "base", "rotary"),
    ("function", "table_wraps", "rotary"),
    ("function", "keys_not_turned", "rotary"),
    ("complex", "keys_in_cache", "cache"),
    ("complex", "rows_touch", "batch"),
    ("complex", "mask_in_cache", "cache"),
    ("complex", "mask_causal", "future"),
    ("complex", "mask_of_padding", "left_padding"),
    ("complex", "positions_of_first_row", "batch"),
    ("complex", "positions_of_another_row", "batch"),
    ("learned", "positions_in_cache", "cache"),
    ("learned", "positions_of_documents", "packing"),
    ("learned", "mask_of_documents", "packing"),
    ("learned", "positions_of_another_row", "batch"),
    ("alibi", "mask_in_cache", "cache"),
    ("alibi", "keys_in_cache", "cache"),
    ("alibi", "mask_of_padding", "left_padding"),
    ("complex", "window", "window"),
    ("learned", "window_in_cache", "window"),
]


@pytest.mark.parametrize("positions", ["complex", "function", "learned", "alibi"])
def test_sound_classes_keep_all_laws(positions):
    report = zoo.audit(handwritten.build_hand(positions, sliding_window=8))
    assert report.is_sound, str(report)
    status = {result.law: result.status for result in report.results}
    laws = {"future", "batch", "cache", "left_padding", "right_padding", "packing", "window"}
    assert {status[law] for law in laws} == {"kept"}


@pytest.mark.parametrize(("positions", "fault", "law"), FAULTS)
def test_faults_are_explained_without_a_sound_copy(positions, fault, law):
    options = {"sliding_window": 8} if fault.startswith("window") else {}
    (result,) = zoo.audit(handwritten.build_hand(positions, fault, **options), laws=[law]).results
    assert result.status == "broken"
    assert result.explanation == fault, result.remark


@pytest.mark.parametrize("positions", ["complex", "learned"])
def test_a_hole_inside_a_window_is_found(positions):
    model = handwritten.build_hand(positions, "hole", sliding_window=8)
    (result,) = zoo.audit(model, laws=["window"]).results
    assert result.status == "broken"
    assert "no token sees the one 3 before it, inside its window" in result.remark


def test_a_scale_that_follows_the_call_is_found_without_rotations():
    report = zoo.audit(handwritten.build_hand("alibi", "length_of_call"), laws=["cache"])
    assert report.broken[0].module == "layers.0.attention"


def test_a_way_that_crashes_is_not_kept():
    model = handwritten.build_hand()
    forward = model.forward

    def refuse(*args, **kwargs):
        if kwargs.get("past_key_values") is not None and kwargs["input_ids"].shape[1] == 1:
            raise RuntimeError("no single tokens")
        return forward(*args, **kwargs)

    model.forward = refuse
    (result,) = zoo.audit(model, laws=["cache"]).results
    assert result.status == "not asked"
    assert "no single tokens" in result.reason
