"""Registered members are found by the text of their files; a file that registers none is an error."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from zoo import registry
from zoo.config import load
from zoo.errors import RecipeError
from zoo.options import COUNTED, Between
from zoo.registry import KINDS, PLUGINS

Write = Callable[[str, str], Path]
IMPORT = "from zoo.registry import register\n"
PACKAGE = Path(registry.__file__).parent
ALL = {kind: registry.names(kind) for kind in ("encodings", "data", "optim", "loggers")}


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write files of the plug-in `my_members`."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(PLUGINS, "my_members")

    def write_file(name: str, text: str) -> Path:
        path = tmp_path / "my_members" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
        return path

    write_file("__init__.py", "")
    yield write_file
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_members"]:
        del sys.modules[name]


def explain_refusal(kind: str) -> str:
    with pytest.raises(RecipeError) as caught:
        registry.names(kind)
    (issue,) = caught.value.issues
    return str(issue)


@pytest.mark.parametrize(
    "text",
    [
        f"{IMPORT}\n@register  # marks it\nclass Mine: ...\n",
        f"{IMPORT}\n@register\n\n# a remark between them\nclass Mine: ...\n",
        "from zoo.registry import register as member\n\n@member\nclass Mine: ...\n",
        "from zoo import registry\n\n@registry.register\nclass Mine: ...\n",
        "import zoo.registry\n\n@zoo.registry.register\nclass Mine: ...\n",
        "import zoo.registry as names\n\n@names.register\nclass Mine: ...\n",
        f"{IMPORT}\nclass Base: ...\n\n@register\nclass Mine(Base):\n    name = 'mine'\n",
        f"{IMPORT}\r\n@register\r\nclass Mine: ...\r\n",
    ],
)
def test_a_class_is_registered_however_its_mark_is_written(write: Write, text: str) -> None:
    write("encodings/mine.py", text)
    assert "mine" in registry.names("encodings")
    cls = registry.find("encodings", "mine")
    assert (cls.__name__, cls.name) == ("Mine", "mine")


def test_text_that_looks_like_a_mark_registers_nothing(write: Write) -> None:
    path = write("encodings/mine.py", '"""A page.\n\n@register\nclass Mine: ...\n"""\n')
    assert explain_refusal("encodings").startswith(f"{path}: registers no class")


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("class Mine: ...\n", None, "registers no class, in a folder of data; mark one of its cl"),
        (
            f"{IMPORT}\n@register\nclass One: ...\n\n@register\nclass Two: ...\n",
            7,
            "registers several classes: One, Two; give each class a file of its own",
        ),
        (
            f"{IMPORT}\n@register\nclass Mine:\n    name = 'other'\n",
            5,
            "registers under another name, 'other'; rename the file to other.py, or remove `name`",
        ),
        (
            f"{IMPORT}\n@register('other')\nclass Mine: ...\n",
            3,
            "@register takes no arguments; write only @register",
        ),
        ("class Mine:\n  def:\n", 2, "syntax error: invalid syntax"),
    ],
)
def test_a_file_that_is_no_member_is_an_error_that_names_it(
    write: Write, text: str, line: int | None, problem: str
) -> None:
    path = write("data/synthetic/mine.py", text)
    start = f"{path}:{line}: {problem}" if line else f"{path}: {problem}"
    assert explain_refusal("data").startswith(start)
    with pytest.raises(RecipeError):
        registry.find("data", "mine")


def test_a_group_of_encodings_that_does_not_exist_is_refused(write: Write) -> None:
    text = f"{IMPORT}\n@register\nclass Mine:\n    part = 'rotations'\n"
    path = write("encodings/mine.py", text)
    expected = f"{path}:5: has the part 'rotations'; write one of input, rotation, keys, bias, rows"
    assert explain_refusal("encodings").startswith(expected)


def test_all_files_that_are_no_members_are_reported_together(write: Write) -> None:
    write("tasks/one.py", "")
    write("tasks/two.py", "")
    with pytest.raises(RecipeError) as caught:
        registry.summaries("tasks")
    assert len(caught.value.issues) == 2


def test_support_modules_of_a_plugin_begin_with_an_underscore_or_lie_deeper(write: Write) -> None:
    before = registry.names("encodings")
    write("encodings/_shared.py", "WIDTH = 1\n")
    write("encodings/common/rings.py", "WIDTH = 1\n")
    assert registry.names("encodings") == before


def test_support_modules_of_zoo_do_not_excuse_files_of_plugins(write: Write) -> None:
    write("tasks/metrics.py", "")
    assert "begin its name with _" in explain_refusal("tasks")


def test_a_file_that_changes_is_read_again(write: Write) -> None:
    write("tasks/mine.py", f'"""First."""\n{IMPORT}\n@register\nclass Mine: ...\n')
    assert registry.summaries("tasks")["mine"] == "First."
    write("tasks/mine.py", f'"""Second."""\n{IMPORT}\n@register\nclass Mine: ...\n')
    assert registry.summaries("tasks")["mine"] == "Second."


def test_listing_imports_no_member(write: Write) -> None:
    write("models/mine.py", f"raise AssertionError\n{IMPORT}\n@register\nclass Mine: ...\n")
    assert "mine" in registry.names("models")
    assert registry.find_member("models", "mine").class_name == "Mine"


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(KeyError, match=r"no encodings named 'ropee'; did you mean rope\?"):
        registry.find("encodings", "ropee")


@pytest.mark.parametrize("kind", KINDS)
def test_every_support_module_of_zoo_is_there_and_every_member_loads(kind: str) -> None:
    root = registry.roots()["zoo"]
    stems = {path.stem for folder in KINDS[kind].folders for path in (root / folder).glob("*.py")}
    assert KINDS[kind].support <= stems
    assert all(inspect.isclass(member.load()) for member in registry.members(kind).values())


@pytest.mark.parametrize(
    ("bounds", "value", "text"),
    [
        (Between(1e-12, 1e12), -0.001, "positive"),
        (Between(1e-12, 1e12), 0, "positive"),
        (Between(1e-12, 1e12), 1e-15, "at least 1e-12"),
        (Between(1e-12, 1e12), 1e13, "at most 1000000000000"),
        (Between(1, COUNTED), 0, "at least 1"),
        (Between(1, COUNTED), COUNTED + 1, "at most 2147483647"),
        (Between(0), -1, "at least 0"),
        (Between(0, 9), 10, "from 0 to 9"),
    ],
)
def test_a_value_out_of_bounds_is_answered_with_the_bound(
    bounds: Between, value: float, text: str
) -> None:
    assert bounds.explain(value) == text


MEMBER = f"{IMPORT}\n@register\nclass Mine: ...\n"


@pytest.mark.parametrize(
    ("kind", "file", "name"),
    [
        ("encodings", "encodings/rope.py", "rope"),
        ("data", "data/synthetic/text.py", "text"),
        # a member of a collection
        ("optim", "optim/adamw.py", "adamw"),
        ("loggers", "loggers/csv.py", "csv"),
    ],
)
def test_a_name_of_zoo_is_refused_to_a_plugin(
    write: Write, kind: str, file: str, name: str
) -> None:
    path = write(file, MEMBER)
    assert explain_refusal(kind).startswith(f"{path}: {name} among {kind} is in {PACKAGE}")
    with pytest.raises(RecipeError, match="give one of them another name"):
        registry.find(kind, name)
    # other names are found as before
    other = next(one for one in ALL[kind] if one != name)
    assert registry.find(kind, other).name == other


def test_a_name_that_a_plugin_registers_twice_is_refused(write: Write) -> None:
    first, second = write("data/mine.py", MEMBER), write("data/synthetic/mine.py", MEMBER)
    assert explain_refusal("data").startswith(f"{second}: mine among data is in {first} too")


def test_a_recipe_and_a_fragment_of_zoo_are_refused_to_a_plugin(write: Write) -> None:
    path = write("recipes/lm_rope.yaml", "seed: 1\n")
    for find in (registry.recipe_files, lambda: load("lm_rope")):
        with pytest.raises(RecipeError, match=f"{path}: recipe lm_rope is in "):
            find()
    assert load("lm_alibi").name == "lm_alibi"
    fragment = write("configs/data/digits.yaml", "name: digits\n")
    write("recipes/mine.yaml", "extends: data/digits\n")
    with pytest.raises(RecipeError, match=f"{fragment}: the fragment data/digits is in "):
        load("mine")


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("import nothing_of_this_name\n", 1, "ModuleNotFoundError: No module named 'nothing_of"),
        ("\n1 / 0\n", 2, "ZeroDivisionError: division by zero"),
        ("import sys\n\nsys.exit(3)\n", 3, "SystemExit: 3"),
        ("from my_members import other\n", 1, "ImportError: cannot import name 'other'"),
        ("from my_members.broken import a\n", 2, "NameError: name 'b' is not defined"),
        ("from my_members.torn import a\n", 1, "SyntaxError: "),
        ("del Mine\n", None, "AttributeError: module 'my_members.encodings.mine' has no attr"),
    ],
)
def test_a_plugin_whose_import_fails_is_named_with_its_line(
    write: Write, text: str, line: int | None, problem: str
) -> None:
    write("broken.py", "\na = b\n")
    write("torn.py", "a = (\n")
    path = write("encodings/mine.py", MEMBER + text if text.startswith("del") else text + MEMBER)
    assert "mine" in registry.names("encodings")
    with pytest.raises(RecipeError) as caught:
        registry.find("encodings", "mine")
    (issue,) = caught.value.issues
    where = {"broken": "broken.py", "torn": "torn.py"}
    name = next((file for key, file in where.items() if key in text), str(path))
    assert issue.origin.endswith(f"{name}:{line}" if line else name)
    assert str(issue.problem).startswith(f"cannot be imported, {problem}")
    assert "leave the plug-in out" in str(issue.remedy)


@pytest.mark.parametrize("write_file", [Path.mkdir, lambda path: path.write_bytes(b"\xff\xfe")])
def test_a_member_that_cannot_be_read_is_named(
    write: Write, write_file: Callable[[Path], object]
) -> None:
    path = write("encodings/_none.py", "").with_name("mine.py")
    write_file(path)
    assert explain_refusal("encodings").startswith(f"{path}: cannot be read, ")


def test_a_package_that_cannot_be_found_is_named_with_who_named_it(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("lonely.py", "")
    write("broken/__init__.py", "1 / 0\n")
    for package, problem in {
        "my_members.lonely": "a module, ",
        "my_members.broken.part": "cannot be found, ZeroDivisionError: division by zero",
        "nothing": "no such package",
        "mine.py": "no such package",
        "my_members:attribute": "no such package",
    }.items():
        monkeypatch.setenv(PLUGINS, package)
        assert explain_refusal("tasks").startswith(f"plug-in: {package}: {problem}")
    monkeypatch.setenv(PLUGINS, "")
    monkeypatch.setattr(registry, "INSTALLED", {"gone": "entry point mine of my-package"})
    expected = "entry point mine of my-package: gone: no such package; install that package again"
    assert explain_refusal("tasks").startswith(expected)


def test_plugins_that_fail_end_commands_without_a_traceback(write: Write, zoo: Any) -> None:
    write("encodings/mine.py", f"1 / 0\n{MEMBER}")
    words = ("model.encoding=mine", "--plugin", "my_members")
    for command in (("fit", "lm_rope", *words), ("show", "lm_rope", *words)):
        code, _, message = zoo(*command)
        assert (code, "mine.py:1: cannot be imported, ZeroDivisionError" in message) == (2, True)
    write("encodings/rope.py", MEMBER)
    for command in (("list", "encodings"), ("fit", "lm_rope"), ("verify", "rope")):
        code, _, message = zoo(*command, "--plugin", "my_members")
        assert (code, "rope.py: rope among encodings is in " in message) == (2, True)
    code, _, message = zoo("list", "--plugin", "nothing")
    assert (code, "plug-in: nothing: no such package" in message) == (2, True)
