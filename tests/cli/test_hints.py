"""Hints can be copied: as the user called zoo, for this environment, with what has to be installed first."""

import ast
import re
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from tiny import ROOT, TINY

from zoo import packages
from zoo.cli import hints, main
from zoo.cli.commands import COMMANDS
from zoo.cli.main import build_command_parser, find_command, find_packages, suggest_command
from zoo.packages import EXTRAS, suggest_extra, suggest_install

PROGRAMS = ("python", "pip", "zoo", "tensorboard")


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A clone of zoo, the current folder, whose environment is not active."""
    programs = tmp_path / "clone" / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in PROGRAMS:
        (programs / name).touch(0o755)
    project = tmp_path / "clone" / "pyproject.toml"
    project.write_text((ROOT / "pyproject.toml").read_text())
    monkeypatch.chdir(project.parent)
    monkeypatch.setattr(packages, "__file__", str(project.parent / "zoo" / "packages.py"))
    monkeypatch.setattr(sys, "executable", str(programs / "python"))
    monkeypatch.setattr(sys, "argv", [str(programs / "zoo")])
    monkeypatch.setenv("PATH", "/nowhere")
    return project.parent


def activate(clone, monkeypatch):
    monkeypatch.setenv("PATH", str(clone / ".venv" / "bin"))


def write_all(run=Path("runs/lm rope/latest")):
    """The hints that name programs."""
    return [
        suggest_install("altair"),
        suggest_install(),
        hints.write_command("compare", "vit_none", "encodings=[none,rope]"),
        hints.write_tensorboard(run),
    ]


def test_an_environment_that_is_not_active_is_named(clone):
    assert write_all() == [
        ".venv/bin/python -m pip install -e '.[compare]'",
        ".venv/bin/python -m pip install -e .",
        ".venv/bin/zoo compare vit_none 'encodings=[none,rope]'",
        ".venv/bin/tensorboard --logdir 'runs/lm rope/latest'",
    ]


def test_an_active_environment_needs_no_paths(clone, monkeypatch):
    activate(clone, monkeypatch)
    assert write_all() == [
        "pip install -e '.[compare]'",
        "pip install -e .",
        "zoo compare vit_none 'encodings=[none,rope]'",
        "tensorboard --logdir 'runs/lm rope/latest'",
    ]


def test_another_environment_that_is_active_is_not_meant(clone, tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.mkdir()
    for name in PROGRAMS:
        (other / name).touch(0o755)
    monkeypatch.setenv("PATH", str(other))
    assert all(hint.startswith(".venv/bin/") for hint in write_all())


def test_outside_of_the_clone_paths_are_whole(clone, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [f"{clone}/.venv/bin/zoo"])
    assert suggest_install("onnx") == (
        f"clone/.venv/bin/python -m pip install -e '{clone}[export]'"
    )
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert hints.write_command("doctor") == f"{clone}/.venv/bin/zoo doctor"


def test_an_installed_zoo_is_installed_by_its_name(clone, monkeypatch):
    activate(clone, monkeypatch)
    (clone / "pyproject.toml").unlink()
    assert suggest_install("altair") == "pip install 'transformer-zoo[compare]'"
    assert suggest_install() == "pip install transformer-zoo"
    assert suggest_install("wandb") == "pip install wandb"
    assert suggest_install("altair", "onnx") == "pip install 'transformer-zoo[compare,export]'"
    # a project of the user that has a copy of zoo
    (clone / "pyproject.toml").write_text('[project]\nname = "mine"\n')
    assert suggest_install("altair") == "pip install 'transformer-zoo[compare]'"


def test_a_module_that_was_run_is_run_again(clone, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(clone / "zoo" / "__main__.py")])
    assert hints.write_command("doctor") == ".venv/bin/python -m zoo doctor"
    activate(clone, monkeypatch)
    assert hints.write_command("doctor") == "python -m zoo doctor"
    (clone / ".venv" / "bin" / "tensorboard").unlink()
    assert hints.write_tensorboard(Path("run")) == "python -m tensorboard.main --logdir run"


def test_an_environment_without_pip_is_filled_by_uv(clone, monkeypatch, tmp_path):
    (clone / ".venv" / "bin" / "pip").unlink()
    finder = SimpleNamespace(find_spec=lambda name: None)
    monkeypatch.setattr(packages, "PathFinder", finder)
    assert suggest_install("altair") == (
        ".venv/bin/python -m ensurepip && .venv/bin/python -m pip install -e '.[compare]'"
    )
    (tmp_path / "uv").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    expected = "uv pip install --python .venv/bin/python -e '.[compare]'"
    assert suggest_install("altair") == expected


def test_no_hint_is_written_by_hand():
    """Texts that name a command come from `hints`; only examples, which it rewrites, are written out."""
    names = "|".join(dict.fromkeys(name.split()[0] for name in COMMANDS))
    command = re.compile(rf"\b(write|see|next:|as in) zoo ({names})\b|pip (un)?install|python -m ")
    for path in sorted((ROOT / "zoo").rglob("*.py")):
        tree = ast.parse(path.read_text())
        docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
            if is_text and id(node) not in docs and command.search(node.value):
                # those of other machines are for whoever reads a model card there
                where = path.relative_to(ROOT / "zoo")
                assert str(where) in (
                    "packages.py",
                    "formats/model_card.py",
                    "formats/modeling_zoo.py",
                ), f"{where}:{node.lineno}: {node.value}"


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_are_right_and_can_be_copied(name, clone):
    example = find_command(name).example
    words = shlex.split(example)
    assert words[0] == "zoo"
    rest = words[1 + len(name.split()) :]
    known = build_command_parser(name).parse_args(rest)
    assert " ".join(words[1 : 1 + len(name.split())]) == name
    # zsh looks for files with a name like this
    assert not re.search(r"(^|\s)[^'\"\s]*\[", example)
    command = find_command(name)
    if command.read is not None:
        command.read(known)
    assert hints.write_example(example).startswith(f".venv/bin/zoo {name}")


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_missing_is_installed_first(name, clone, monkeypatch):
    monkeypatch.setattr(sys.modules["zoo.cli.main"], "list_missing", lambda packages: [*packages])
    words = shlex.split(find_command(name).example)[1:]
    *install, command = suggest_command(*words).split(" && ")
    assert bool(install) == bool(find_packages(words))
    for line in install:
        assert re.fullmatch(r"\.venv/bin/python -m pip install -e '\.\[[\w,]+\]'", line)
    assert command.startswith(f".venv/bin/zoo {name}")


def test_extras_are_installed_by_their_names(clone):
    for extra in EXTRAS:
        assert suggest_extra(extra) == f".venv/bin/python -m pip install -e '.[{extra}]'"


def test_a_run_ends_with_commands_for_its_environment(clone, monkeypatch, caplog):
    monkeypatch.setattr(sys.modules["zoo.cli.main"], "list_missing", lambda packages: [*packages])
    assert main(["fit", "vit_none", *TINY, "evaluate.resolutions=null", "--run-dir", "run"]) == 0
    assert [line for line in caplog.messages if line.startswith("next: ")] == [
        "next: .venv/bin/zoo eval run",
        "next: .venv/bin/python -m pip install -e '.[compare]' && .venv/bin/zoo diagnose run",
        "next: .venv/bin/tensorboard --logdir run",
    ]
