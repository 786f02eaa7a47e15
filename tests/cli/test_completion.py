"""`zoo --print-completion`: scripts of shells that know commands, recipes and encodings."""

import pytest

from zoo.cli import main


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_commands_recipes_and_encodings(shell, capsys):
    with pytest.raises(SystemExit) as done:
        main(["--print-completion", shell])
    assert done.value.code in (0, None)
    script = capsys.readouterr().out
    for word in ("doctor", "vit_comrope", "alibi", "run-dir"):
        assert word in script


def test_an_unknown_shell_is_refused_with_those_that_are_known(capsys):
    assert main(["--print-completion", "tcsh"]) == 2
    assert "'bash', 'zsh', 'fish'" in capsys.readouterr().err
