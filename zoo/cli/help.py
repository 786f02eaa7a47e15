"""The option list of `zoo COMMAND --help`, read from the source of the option dataclasses.

Nothing is imported for it: a class is parsed, its fields listed with type, default and comment. So
the help of a command stays fast, and cannot differ from what the command accepts.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parent.parent
WIDTH = 100
INDENT = 4

WORDS = {"Count": "int >= 1", "Seed": "int >= 0", "str": "text", "bool": "true|false"}
"""How types read for a user."""


@dataclass(frozen=True)
class OptionHelp:
    """One option of a command: its key, type, default and comment, as text."""

    key: str
    kind: str
    default: str
    comment: str

    def format(self) -> str:
        """Return the lines of `--help` for this option."""
        head = f"{'':{INDENT}}{self.key}={self.default}  ({self.kind})"
        body = textwrap.wrap(self.comment, WIDTH - 2 * INDENT)
        return "\n".join([head, *(f"{'':{2 * INDENT}}{line}" for line in body)])


def format_options(sources: Sequence[tuple[str, str]]) -> str:
    """List the options of several dataclasses.

    Args:
        sources: Pairs of a key prefix (`trainer.`, or nothing) and the class, `module:Class`.
    """
    lines = [option.format() for prefix, name in sources for option in read_options(name, prefix)]
    return "\n".join(["options, written key=value:", *lines]) if lines else ""


def read_options(name: str, prefix: str = "") -> Iterator[OptionHelp]:
    """Yield the fields of the dataclass `module:Class`, in their order."""
    module, _, class_name = name.partition(":")
    path = PACKAGE.parent.joinpath(*module.split(".")).with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    definition = _find_class(tree, class_name)
    aliases = _read_aliases(tree)

    for field, following in zip(definition.body, [*definition.body[1:], None], strict=True):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        default = "" if field.value is None else _format_default(field.value)
        comment = _read_docstring(following)
        kind = _format_type(field.annotation, aliases)
        yield OptionHelp(prefix + field.target.id, kind, default, comment)


def _find_class(tree: ast.Module, name: str) -> ast.ClassDef:
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)


def _read_aliases(tree: ast.Module) -> dict[str, ast.expr]:
    """Return the types that the module gives a name, `Precision = Literal[...]`."""
    assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
    return {ast.unparse(node.targets[0]): node.value for node in assigned}


def _read_docstring(node: ast.stmt | None) -> str:
    """Return the text of a string that stands alone below a field."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return " ".join(str(node.value.value).split())
    return ""


def _format_default(value: ast.expr) -> str:
    """Write a default as a user types it: none as null, lists in brackets."""
    if isinstance(value, ast.Constant):
        if value.value is None:
            return "null"
        return str(value.value).lower() if isinstance(value.value, bool) else str(value.value)
    if isinstance(value, ast.Tuple | ast.List):
        return f"[{','.join(map(_format_default, value.elts))}]"
    return ast.unparse(value)


def _format_type(annotation: ast.expr, aliases: dict[str, ast.expr]) -> str:
    """Write a type in the words of a recipe."""
    if isinstance(annotation, ast.BinOp):
        parts = [_format_type(part, aliases) for part in (annotation.left, annotation.right)]
        return " or ".join(dict.fromkeys(parts))
    if isinstance(annotation, ast.Constant):
        return "null" if annotation.value is None else str(annotation.value)
    if isinstance(annotation, ast.Name):
        if annotation.id in aliases:
            return _format_type(aliases[annotation.id], aliases)
        return WORDS.get(annotation.id, annotation.id)
    if not isinstance(annotation, ast.Subscript):
        return ast.unparse(annotation)

    kind = ast.unparse(annotation.value)
    inner = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
    if kind == "Literal":
        return "|".join(str(ast.literal_eval(word)) for word in inner)
    if kind == "Annotated":
        return f"{_format_type(inner[0], aliases)}{_format_bounds(inner[1])}"
    if kind == "tuple":
        return f"list of {_format_type(inner[0], aliases)}"
    if kind in ("Mapping", "dict"):
        return "mapping"
    return ast.unparse(annotation)


def _format_bounds(mark: ast.expr) -> str:
    """Write `Between(1, 4)` as bounds; other marks say nothing that fits on a line."""
    if not isinstance(mark, ast.Call) or ast.unparse(mark.func) != "Between":
        return ""
    low, *high = (ast.unparse(bound) for bound in mark.args)
    return f" from {low} to {high[0]}" if high else f" >= {low}"
