"""Every command of docs/quickstart.md runs, in the order of the page, in one folder."""

import re
import shlex
from pathlib import Path

import pytest

from zoo.cli import main

PAGE = Path(__file__).parent.parent / "docs" / "quickstart.md"


def read_commands():
    """The `zoo ...` lines of the page's shell blocks."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One folder for all commands, since later ones use what earlier ones wrote."""
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp("quickstart")
        patch.chdir(path)
        patch.setenv("ZOO_PLUGINS", "")
        yield path


@pytest.mark.parametrize("command", read_commands())
def test_the_command_succeeds(command, folder, capsys):
    program, *words = shlex.split(command)
    assert program == "zoo"
    code = main(words)
    assert code == 0, capsys.readouterr().err


def test_the_commands_write_what_the_page_promises(folder):
    run = folder / "runs" / "vit_comrope" / "latest"
    assert (run / "recipe.yaml").exists()
    assert (run / "diagnosis.html").exists()
    assert (folder / "first" / "index.html").exists()


def test_the_page_has_a_command_for_each_task():
    verbs = {command.split()[1] for command in read_commands()}
    assert verbs >= {"list", "show", "fit", "eval", "diagnose", "compare", "verify"}
