"""`zoo list` as JSON: names and summaries, and what each encoding changes."""

import json

from zoo import registry
from zoo.cli import main


def read(capsys, *words):
    assert main(["list", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_encodings_come_with_what_they_change(capsys):
    (listed,) = read(capsys, "encodings").values()
    found = {one["name"]: one for one in listed}
    assert [*found] == sorted(registry.names("encodings"))
    few = ("none", "rope", "alibi", "sinusoidal", "stickbreaking", "lookhere")
    assert {name: found[name]["changes"] for name in few} == {
        "none": [],
        "rope": ["queries and keys"],
        "alibi": ["biases"],
        "sinusoidal": ["input"],
        "stickbreaking": ["rows of scores", "values and output"],
        "lookhere": ["biases"],
    }
    assert found["fox"]["facts"]["reads_states"] == "yes"
    assert all(one["changes"] for name, one in found.items() if name != "none")


def test_other_kinds_have_names_and_summaries(capsys):
    listed = read(capsys, "loggers")
    assert {"name", "summary"} == {*listed["loggers"][0]}
    assert "auto" in [one["name"] for one in listed["loggers"]]
