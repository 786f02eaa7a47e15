"""Every command of docs/quickstart.md runs, in the order of the page, in one folder."""

import re
import shlex
from pathlib import Path

from zoo.cli import main

PAGE = Path(__file__).parent.parent / "docs" / "quickstart.md"


def read_commands():
    """The `zoo ...` lines of the page's shell blocks."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line]


def test_the_commands_succeed_and_write_what_the_page_promises(tmp_path, monkeypatch, capsys):
    """In one test, since later commands use what earlier ones wrote."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZOO_PLUGINS", "")
    for command in read_commands():
        program, *words = shlex.split(command)
        assert program == "zoo"
        code = main(words)
        assert code == 0, (command, capsys.readouterr().err)

    run = tmp_path / "runs" / "vit_comrope" / "latest"
    assert (run / "recipe.yaml").exists()
    assert (run / "diagnosis.html").exists()
    assert (tmp_path / "first" / "index.html").exists()


def test_the_page_has_a_command_for_each_task():
    verbs = {command.split()[1] for command in read_commands()}
    assert verbs >= {"list", "show", "fit", "eval", "diagnose", "compare", "verify"}
