"""JSON that any program reads."""

import json

from zoo.reporting.numbers import as_json


def test_what_is_no_number_is_null():
    text = as_json(
        {"loss": float("nan"), "by place": (1.5, float("inf"), 2), "metrics": {"é": float("-inf")}}
    )
    assert json.loads(text, parse_constant=lambda word: 1 / 0) == {
        "loss": None,
        "by place": [1.5, None, 2],
        "metrics": {"é": None},
    }
