"""Text in a terminal is wrapped to its width and coloured; text in files is neither."""

import os
import pty
import re
import subprocess
import sys

import pytest

from zoo import registry
from zoo.cli import main
from zoo.cli.list import KINDS
from zoo.cli.terminal import GREEN, RED, RESET, YELLOW, paint, wrap

COMMANDS = (["list"], ["list", "encodings"], ["list", "recipes"], ["show", "rope"], ["doctor"])


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_wrapped_lines_fit_and_lose_no_word(capsys, monkeypatch, words):
    main([*words])
    whole = capsys.readouterr().out
    monkeypatch.setattr("zoo.cli.terminal.find_width", lambda: 80)
    main([*words])
    wrapped = capsys.readouterr().out
    assert wrapped.split() == whole.split()
    # a path may be longer than what its column leaves
    too_long = [line for line in wrapped.splitlines() if len(line) > 80]
    assert all(max(map(len, line.split())) > 40 for line in too_long)


def test_a_line_of_a_table_continues_below_its_last_column():
    line = "  scaling.factor  the length of texts relative to training"
    assert wrap(line, 40).splitlines() == [
        "  scaling.factor  the length of texts",
        "                  relative to training",
    ]


def test_a_paragraph_leaves_no_short_rests():
    first, rest = "word " * 14 + "end", "of the sentence"
    wrapped = wrap(f"{first}\n{rest}\n\nnext", 50)
    assert wrapped.splitlines() == [
        "word word word word word word word word word word",
        "  word word word word end of the sentence",
        "",
        "next",
    ]


def test_rows_of_markdown_tables_stay_whole():
    row = "| a | " + "long " * 30 + "|"
    assert wrap(row, 60) == row


def test_states_and_headings_are_coloured():
    text = "formula\n  x\nok      torch  2\nabsent  cuda\nbroken  numpy  1\n| 1 | broken  |"
    lines = paint(text).splitlines()
    assert lines[0] == f"\033[1mformula{RESET}"
    assert lines[2].startswith(f"{GREEN}ok{RESET}  ")
    assert lines[3].startswith(f"{YELLOW}absent{RESET}")
    assert lines[4].startswith(f"{RED}broken{RESET}")
    assert lines[5] == f"| 1 | {RED}broken{RESET}  |"
    assert re.sub("\033\\[[0-9;]*m", "", "\n".join(lines)) == text


@pytest.mark.parametrize(
    ("variables", "is_coloured"), [({}, True), ({"NO_COLOR": "1"}, False)], ids=["usual", "none"]
)
def test_a_terminal_gets_colours_unless_it_has_none(variables, is_coloured):
    ours, theirs = pty.openpty()
    environment = {key: value for key, value in os.environ.items() if key != "FORCE_COLOR"}
    code = "from zoo.cli.terminal import print_text; print_text('ok      torch')"
    subprocess.run([sys.executable, "-c", code], stdout=theirs, env={**environment, **variables})
    printed = os.read(ours, 1000).decode()
    os.close(ours)
    os.close(theirs)
    assert (GREEN in printed) is is_coloured
    assert "torch" in printed


def test_a_list_of_all_kinds_counts_their_members(capsys):
    assert main(["list"]) == 0
    rows = dict(line.split()[:2] for line in capsys.readouterr().out.splitlines())
    assert [*rows] == [*KINDS]
    assert int(rows["encodings"]) == len(registry.names("encodings"))
