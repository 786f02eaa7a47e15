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


def test_encodings_are_listed_by_what_they_change(capsys):
    """The declared group, read without an import, is what the encoding does in a small layer."""
    (listed,) = read(capsys, "encodings").values()
    grouped = registry.group_encodings()
    assert [*grouped] == [group for group in registry.GROUPS if group]
    assert {one["name"]: one["group"] for one in listed} == {
        name: group for group, names in grouped.items() for name in names
    }
    needed = {"input": "input", "rotation": "queries and keys", "bias": "biases"}
    for one in listed:
        group, changes = one["group"], one["changes"]
        assert needed.get(group) in (None, *changes), one["name"]
        assert (group == "nothing") == (changes == [])
        assert (group == "gates") == (one["facts"]["reads_states"] == "yes")
        # a temperature scales the queries, and with them rows of scores
        if group == "rows":
            assert "rows of scores" in changes or changes == ["queries and keys"], one["name"]


def test_the_printed_list_has_a_heading_for_each_group(capsys):
    assert main(["list", "encodings"]) == 0
    blocks = capsys.readouterr().out.strip().split("\n\n")
    printed = {block.partition(":\n")[0]: block.partition(":\n")[2] for block in blocks}
    assert [*printed] == [heading for group, heading in registry.GROUPS.items() if group]
    assert printed["No positions"].startswith("none ")
    assert "\nfox " in printed["Gates of tokens"]


def test_other_kinds_have_names_and_summaries(capsys):
    listed = read(capsys, "loggers")
    assert {"name", "summary"} == {*listed["loggers"][0]}
    assert "tensorboard" in [one["name"] for one in listed["loggers"]]
