"""YAML text: what is read, with which place, and what is refused."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from zoo.config.tree import parse, read_file, show_path
from zoo.errors import ConfigIssue, RecipeError


def parse_text(text: str) -> object:
    faults: list[ConfigIssue] = []
    tree = parse(text, str, faults)
    assert not faults
    return tree.data


def refusal(text: str | bytes) -> list[str]:
    """What is told of a file with this text."""
    Path("bad.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    faults: list[ConfigIssue] = []
    try:
        read_file(Path("bad.yaml"), faults)
    except RecipeError as error:
        faults += error.issues
    assert all("\n" not in str(fault) and len(str(fault)) < 200 for fault in faults)
    return list(map(str, faults))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1e5", 1e5),
        (".5", 0.5),
        ("-1.5E+2", -150.0),
        ("10_000", 10_000),
        ("-3", -3),
        ("0", 0),
        ("0x1F", 31),
        ("true", True),
        ("False", False),
        ("yes", "yes"),
        ("on", "on"),
        ("2001-01-01", "2001-01-01"),
        ("1:30", "1:30"),
        ("010", "010"),
        ("null", None),
        ("~", None),
        ("'1'", "1"),
        ("[a, 1]", ["a", 1]),
        ("=", "="),
        ("1.", 1.0),
    ],
)
def test_scalars_have_the_types_of_yaml_1_2(text: str, value: object) -> None:
    found = parse_text(text)
    assert found == value
    assert type(found) is type(value)


def test_every_value_knows_the_line_of_its_key() -> None:
    tree = parse("a: 1\nb:\n  c: &x\n    - 2\n    - 3\nd: *x\n", str, [])
    assert tree.locations == {
        "": "1",
        "a": "1",
        "b": "2",
        "b.c": "3",
        "b.c.0": "4",
        "b.c.1": "5",
        "d": "6",
        "d.0": "4",
        "d.1": "5",
    }


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: [1\nb: 2\n", "bad.yaml:2: bad YAML: the [ of line 1 is not closed; close it with ]"),
        (
            "a: 1\nb: {c: 2\n",
            "bad.yaml:3: bad YAML: the { of line 2 is not closed; close it with }",
        ),
        (
            "a: ${b.c}\nb: {c: ${a}}\n",
            "bad.yaml:2: bad YAML: a bare ${...} within brackets; put it",
        ),
        (
            "a:\n\tb: 1\n",
            "bad.yaml:2: bad YAML: a tab, where YAML takes spaces; indent with spaces",
        ),
        ("a:\n  b: 1\n\tc: 1\n", "bad.yaml:3: bad YAML: a tab, where YAML takes spaces"),
        ("a:\t{b: 1}\n", "bad.yaml:1: bad YAML: a tab, where YAML takes spaces"),
        ("a: %b\n", "bad.yaml:1: bad YAML: a string that begins with %; put it in quotes"),
        (
            "a: 1\nb=2\nc: 3\n",
            "bad.yaml:2: bad YAML: a line that is no `key: value`; write a colon",
        ),
        ("a: 1\nb: 'c\nd: 2\n", "bad.yaml:2: bad YAML: a quotation mark that is not closed; close"),
        ("a: 'it's'\n", "bad.yaml:1: bad YAML: something after the end of a string in quotes; put"),
        ("a: b: c\n", "bad.yaml:1: bad YAML: a colon where no key can be"),
        ("a:\n  b: 1\n   c: 2\n", "bad.yaml:3: bad YAML: a colon where no key can be"),
        ("a:\n   b: 1\n  c: 2\n", "bad.yaml:3: bad YAML: indented otherwise than the lines above"),
        (
            "a: 1\n<<<<<<< HEAD\nb: 1\n=======\nb: 2\n>>>>>>> other\n",
            "bad.yaml:2: not YAML: a merge conflict of git that was not resolved; keep one of both",
        ),
        (
            "a: 1\n---\nb: 2\n",
            "bad.yaml:2: bad YAML: a second document begins here, after ---; keep",
        ),
        (
            "a: 1\nb: !!python/object/apply:os.system [ls]\n",
            "bad.yaml:2: bad YAML: the tag '!!python/obj",
        ),
        ("a: !foo 1\n", "bad.yaml:1: bad YAML: the tag '!foo' is refused"),
        ("a: !!str 1\n", "bad.yaml:1: bad YAML: the tag '!!str' is refused"),
        ("a:\n  - &x [*x]\n", "bad.yaml:2: bad YAML: an alias inside its own anchor, which would"),
        ("a: *x\n", "bad.yaml:1: bad YAML: *x repeats an anchor &x, and there is none above; put"),
        ('a: "\\UFFFFFFFF"', "bad.yaml:1: bad YAML: an escape that names no character"),
        ('a: "\\uD800"', "bad.yaml:1: bad YAML: an escape that names half a character"),
        ("a: 1\n\0", "bad.yaml:2: not text: it holds a control character, of number 0; remove it"),
        (b"a: 1\nb: \xff\n", "bad.yaml:2: not UTF-8 text; save it as UTF-8"),
        ("a: 1\n".encode("utf-16"), "bad.yaml:1: not UTF-8 text but UTF-16 text; save it as UTF-8"),
        (b"\x89PNG\r\n", "bad.yaml:1: not UTF-8 text but a picture; name a YAML file"),
        (
            b"PK\x03\x04\x14\0",
            "bad.yaml:1: not UTF-8 text but an archive, as checkpoints are; name",
        ),
        ("", "bad.yaml: the file is empty"),
        ("# nothing\n", "bad.yaml: the file is empty"),
        ("\n- 1\n", "bad.yaml:2: a recipe is a mapping of sections"),
        ("x", "bad.yaml:1: a recipe is a mapping of sections"),
        (b"#" * (1 << 20) + b"#", "bad.yaml: larger than 1 MiB"),
    ],
)
def test_unreadable_text_is_one_fault_with_its_line(text: str | bytes, line: str) -> None:
    (found,) = refusal(text)
    assert found.startswith(line)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: {b: 1, c: 2,\n  b: 3}\n", "bad.yaml:2: a.b: given twice, first at bad.yaml:1"),
        ("a:\n  <<: {b: 1}\n", "bad.yaml:2: a: merge keys (<<) are refused; use extends"),
        ("1: 2\n", "bad.yaml:1: the key '1' is not a string; put it in quotes"),
        ("true: 2\n", "bad.yaml:1: the key 'true' is not a string; put it in quotes"),
        ("1.5: 2\n", "bad.yaml:1: the key '1.5' is not a string; put it in quotes"),
        ("null: 2\n", "bad.yaml:1: the key 'null' is not a string; put it in quotes"),
        ("a: {b:1}\n", "bad.yaml:1: a: no space after the colon of 'b:1'; write b: 1"),
        ("a: 1\n\ufeffb: 2\n", "bad.yaml:2: '\\ufeffb' cannot be a key; remove the invisible"),
        (
            "a:\n\u00a0b: 2\n",
            "bad.yaml:2: '\\xa0b' cannot be a key; remove the invisible character",
        ),
        ("? [a]\n: 2\n", "bad.yaml:1: a key must be a word"),
        ("a.b: 1\n", "bad.yaml:1: 'a.b' cannot be a key; nest keys instead of writing dots"),
        ('"a\\nb": 1\n', "bad.yaml:1: 'a\\nb' cannot be a key"),
    ],
)
def test_bad_keys_are_faults(text: str, line: str) -> None:
    (found,) = refusal(text)
    assert found.startswith(line)


def test_a_byte_order_mark_and_the_ends_of_lines_of_other_systems_change_nothing() -> None:
    for text in (b"\xef\xbb\xbfa: 1\n", b"a: 1\r\n", b"a: 1\r"):
        Path("good.yaml").write_bytes(text)
        assert read_file(Path("good.yaml"), []).data == {"a": 1}


def test_bad_keys_are_told_all_at_once() -> None:
    assert len(refusal("a: 1\na: 2\n1: 2\nb: {<<: {}, c: 1, c: 2}\n")) == 4


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? ", "[{a: "])
def test_deep_nesting_is_refused_at_once(opening: str) -> None:
    start = time.perf_counter()
    (found,) = refusal(opening * 100_000)
    assert "nested deeper than 32 levels" in found
    assert time.perf_counter() - start < 2


def test_a_depth_of_thirty_levels_is_read() -> None:
    assert parse_text("[" * 30 + "]" * 30) is not None


def test_an_alias_bomb_is_refused_at_once() -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 20))
    start = time.perf_counter()
    (found,) = refusal(bomb)
    assert "once its aliases are expanded" in found
    assert time.perf_counter() - start < 2


def test_more_than_ten_thousand_values_are_refused() -> None:
    (found,) = refusal("a: [" + "1," * 11_000 + "]")
    assert "more than 10,000 values" in found


def test_merge_sign_in_quotes_is_a_key() -> None:
    assert parse_text("'<<': 1") == {"<<": 1}


@pytest.mark.robustness
def test_a_byte_order_mark_is_no_part_of_a_key() -> None:
    Path("marked.yaml").write_text("seed: 1\n", encoding="utf-8-sig")
    assert read_file(Path("marked.yaml"), []).data == {"seed": 1}


def test_paths_are_shown_as_the_user_knows_them(tmp_path: Path) -> None:
    assert show_path(tmp_path / "a" / "b.yaml") == str(Path("a/b.yaml"))
    assert show_path(tmp_path.parent / "b.yaml") == str(tmp_path.parent / "b.yaml")


def test_a_file_that_cannot_be_opened_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", deny)
    with pytest.raises(RecipeError, match=r"mine\.yaml: cannot be read: Permission denied"):
        read_file(Path("mine.yaml"), [])
