"""No part of zoo, and no script of its pages, reads text that another part has written for people."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = [*sorted((ROOT / "zoo").rglob("*.py")), *sorted((ROOT / "docs" / "build").glob("*.py"))]

MAKERS = ("describe", "explain", "format", "spell")
"""How functions begin that write text for people."""
FIELDS = {"problem", "remedy", "message", "label", "reason", "title", "method"}
"""Attributes that hold such text."""
NAMES = {"problem", "remedy", "message", "hint", "reason", "answer", "cause", "description"}
"""Variables and parameters that hold such text."""
CUTS = {
    *("split", "rsplit", "splitlines", "partition", "rpartition", "removeprefix", "removesuffix"),
    *("startswith", "endswith", "find", "rfind", "index", "count"),
}
"""Methods of a string that read it."""
SEARCHES = {"search", "match", "fullmatch", "findall", "finditer", "sub", "split"}
"""Functions of `re`, and methods of its patterns."""
WRAPPERS = {"strip", "lstrip", "rstrip", "lower", "casefold", "replace", "join"}
"""Methods of a string that return text of the same kind."""

ALLOWED = {
    # messages of other libraries, which have no other form
    "zoo/cli/main.py error": "argparse names the arguments that are missing in its message only",
    "zoo/config/yaml_errors.py explain_error": "PyYAML",
    "zoo/data/tables/open_table.py _describe": "datasets, whose errors have one type",
    "zoo/formats/traced.py capture": "torch.export ends messages with a link",
    "zoo/formats/traced.py write_onnx": "torch.onnx names the operator in its message only",
    "zoo/packages.py suggest_repair": "the dynamic linker and numpy",
    "zoo/run/checkpoint.py read": "the unpickler of torch",
    "zoo/run/preflight.py _refuse_overflow": "torch, whose errors about sizes have two types",
    "zoo/run/processes.py explain_lost": "gloo and nccl raise RuntimeError",
    "zoo/run/processes.py is_connection_error": "gloo and nccl raise RuntimeError",
    "zoo/utils.py explain_memory": "the data loader of torch raises RuntimeError",
    "zoo/utils.py is_out_of_memory": "torch raises RuntimeError on a CPU",
    # the message itself is what is asked
    "zoo/laws/backends.py _require_refusal": "a law: the refusal names the way on",
    "zoo/laws/gradients.py undeclared_axes_are_refused": "a law: the refusal names the axes",
    # text is changed for a reader, and nothing depends on it
    "zoo/formats/published.py name_fields": "names of entries become those of a GGUF file",
    "docs/build/equip_page.py try_encoding": "a row names its encoding, so its footnotes need not",
    "docs/build/measured_pages.py _speed_section": "headings become those of a page",
}
"""{file and function: why it may read a message}"""


class Reader:
    """Finds where a function reads text for people.

    Args:
        function: The function.
    """

    def __init__(self, function):
        self.nodes = [*ast.walk(function)]
        handlers = [node for node in self.nodes if isinstance(node, ast.ExceptHandler)]
        self.errors = {"error", *(node.name for node in handlers)}
        self.names = {*NAMES}
        # a variable holds a message if a message is assigned to it, perhaps by another variable
        while added := {*self._list_assigned()} - self.names:
            self.names |= added

    def _list_assigned(self):
        kinds = ast.Assign | ast.AnnAssign | ast.NamedExpr
        for node in self.nodes:
            if isinstance(node, kinds) and node.value and self.is_message(node.value):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                yield from (target.id for target in targets if isinstance(target, ast.Name))

    def is_message(self, node):
        """Return whether an expression is text for people."""
        match node:
            case ast.Name():
                return node.id in self.names
            case ast.Attribute():
                return node.attr in FIELDS
            case ast.Call():
                return self._returns_message(node)
            case ast.JoinedStr():
                shown = [one.value for one in node.values if isinstance(one, ast.FormattedValue)]
                return any(self.is_message(one) or self._is_error(one) for one in shown)
            case ast.BinOp():
                return self.is_message(node.left) or self.is_message(node.right)
            case ast.BoolOp():
                return any(map(self.is_message, node.values))
            case ast.IfExp():
                return self.is_message(node.body) or self.is_message(node.orelse)
            case ast.Subscript():
                return self.is_message(node.value)
        return False

    def _is_error(self, node):
        return isinstance(node, ast.Name) and node.id in self.errors

    def _returns_message(self, call):
        name = get_name(call.func)
        if name in ("str", "repr") and call.args:
            return self._is_error(call.args[0]) or self.is_message(call.args[0])
        if isinstance(call.func, ast.Attribute) and name in (WRAPPERS | CUTS):
            parts = [call.func.value, *(call.args if name == "join" else ())]
            return any(map(self.is_message, parts))
        return any(name.lstrip("_").split("_")[0] == one for one in MAKERS) and name != "format"

    def list_reads(self):
        """Yield the expressions that read a message."""
        for node in self.nodes:
            if isinstance(node, ast.Compare):
                asks = any(isinstance(one, ast.In | ast.NotIn) for one in node.ops)
                if asks and any(map(self.is_message, node.comparators)):
                    yield node
            elif isinstance(node, ast.Call) and not is_layout(node):
                name, is_method = get_name(node.func), isinstance(node.func, ast.Attribute)
                cuts = is_method and name in CUTS and self.is_message(node.func.value)
                if cuts or (name in SEARCHES and any(map(self.is_message, node.args))):
                    yield node


def get_name(function):
    match function:
        case ast.Attribute():
            return function.attr
        case ast.Name():
            return function.id
    return ""


def is_layout(call):
    """Return whether a call asks for lines or words only, as to shorten a message."""
    name, arguments = get_name(call.func), [ast.unparse(one) for one in call.args]
    return (
        name == "splitlines"
        or (name == "split" and not arguments)
        or arguments in ([r"'\n'"], ["chr(10)"])
    )


def find_readers(tree):
    """Return {name of a function: expressions by which it reads a message}."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            reads = [ast.unparse(one) for one in Reader(node).list_reads()]
            if reads:
                found.setdefault(node.name, []).extend(reads)
    return found


PLANTED = {
    "a message in two parts": "def f(error):\n    return str(error).split('; ')",
    "a word of a message": "def f():\n    try: g()\n    except E as e: return 'unknown' in str(e)",
    "by a variable": "def f():\n    try: g()\n    except E as e: t = str(e)\n    u = t.strip()\n"
    "    return u.partition(': ')[2]",
    "in an f-string": "def f(error):\n    return f'{error}'.startswith('no ')",
    "a problem": "def f(issue):\n    return issue.problem.endswith('.')",
    "a label": "def f(condition):\n    return float(condition.describe().rpartition(' x')[2])",
    "a formatted size": "def f(size):\n    t = format_size(size)\n    return 'x' in t",
    "a pattern": "def f(error):\n    return re.search('key (.*)', str(error))",
    "a compiled pattern": "def f(error):\n    return PATTERN.match(str(error))",
    "joined lines": "def f(error):\n    return ' '.join(str(error).split()).partition('. ')[0]",
}
SOUND = {
    "its first line": "def f(error):\n    return str(error).strip().splitlines()[0]",
    "its words": "def f(error):\n    return ' '.join(str(error).split())[:300]",
    "another string": "def f(path):\n    return path.name.split('.')",
    "a value": "def f(error):\n    return error.key.startswith('model.')",
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_reader_of_messages_is_found(name):
    assert find_readers(ast.parse(PLANTED[name]))


@pytest.mark.parametrize("name", SOUND)
def test_other_strings_are_read(name):
    assert not find_readers(ast.parse(SOUND[name]))


def test_no_part_reads_text_that_another_part_writes():
    readers = {}
    for path in FILES:
        for name, reads in find_readers(ast.parse(path.read_text(encoding="utf-8"))).items():
            readers[f"{path.relative_to(ROOT)} {name}"] = reads
    unexplained = {place: reads for place, reads in readers.items() if place not in ALLOWED}
    assert unexplained == {}, "pass the value in place of its text, or give the reason in ALLOWED"
    assert {*ALLOWED} <= {*readers}, "no longer reads a message: remove it from ALLOWED"
