"""Options of a class: its keyword-only arguments, the one place where a default is written.

The options of registered members are read from the text of their files, so that validating a recipe
does not import lightning or datasets. Only what an annotation or a default names is imported, such
as a dataclass of options.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_type_hints

from zoo.options.marks import Count
from zoo.registry import Member, find_member, parse_file, roots


@dataclass(frozen=True)
class Option:
    """An option of a class.

    Attributes:
        annotation: Its type, with marks such as `Between`.
        default: Its default; a required option has none.
        comment: The string below the field of a dataclass, for `--help`.
    """

    annotation: Any
    default: Any = inspect.Parameter.empty
    comment: str = ""

    @property
    def is_required(self) -> bool:
        return self.default is inspect.Parameter.empty


@dataclass(frozen=True, kw_only=True)
class EveryEncoding:
    """Options of every encoding; None leaves the fact that its class declares."""

    shared: bool | None = None
    coordinates: (
        Literal["index", "fraction", "growing", "symmetric", "interpolated", "unit"] | None
    ) = None


@dataclass(frozen=True, kw_only=True)
class EveryData:
    """Options of all data; None leaves the batch size of a process."""

    global_batch_size: Count | None = None


EXTRAS: Mapping[str, type] = {"encodings": EveryEncoding, "data": EveryData}


@functools.cache
def extras(kind: str) -> Mapping[str, Option]:
    """Return the options common to all members of a kind."""
    return fields(EXTRAS[kind]) if kind in EXTRAS else {}


def options(cls: type) -> dict[str, Option]:
    """Return the keyword-only arguments of a class, in the order of its signature."""
    if "__dataclass_fields__" in vars(cls):
        return fields(cls, keyword_only=True)
    hints = _read_hints(cls.__init__)  # type: ignore[misc]
    parameters = inspect.signature(cls.__init__).parameters.values()  # type: ignore[misc]
    return {
        parameter.name: Option(hints[parameter.name], parameter.default)
        for parameter in parameters
        if parameter.kind is parameter.KEYWORD_ONLY
    }


def fields(cls: type, keyword_only: bool = False) -> dict[str, Option]:
    """Return the fields that a dataclass is made with."""
    hints = _read_hints(cls)
    return {
        field.name: Option(hints[field.name], _default(field))
        for field in dataclasses.fields(cls)
        if field.init and (field.kw_only or not keyword_only)
    }


@functools.cache
def _read_hints(owner: Any) -> Mapping[str, Any]:
    """Return the annotations of a class or function, evaluated once: models have many encodings."""
    return get_type_hints(owner, include_extras=True)


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default


def read_options(kind: str, name: str) -> dict[str, Option]:
    """Return the options of a registered member without importing its file.

    A member is imported after all if its class writes no `__init__`, as a dataclass, or if its
    annotations cannot be evaluated by themselves.

    Raises:
        KeyError: No member has this name.
    """
    member = find_member(kind, name)
    try:
        arguments = _find_init(member)
        names = ModuleNames(member.module, member.path)
        return {
            argument.arg: Option(
                names.evaluate(argument.annotation, is_annotation=True),
                inspect.Parameter.empty if default is None else names.evaluate(default),
            )
            for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        }
    except Exception:  # an import tells the truth, or what is wrong with the file
        return options(member.load())


def read_option_names(kind: str, name: str) -> tuple[str, ...]:
    """Return the names of a member's options, without evaluating what they are.

    A class whose options are no arguments of an `__init__` in its file is read as `read_options`
    does; one that cannot be read has none here.
    """
    try:
        return tuple(argument.arg for argument in _find_init(find_member(kind, name)).kwonlyargs)
    except LookupError:
        pass
    try:
        return tuple(read_options(kind, name))
    except Exception:  # what is wrong with a member of a plug-in is said where it is used
        return ()


def read_class(path: str) -> dict[str, Option]:
    """Return the fields of the dataclass `module:Class` without importing its module.

    `zoo --help` lists the options of modules that import torch.
    """
    module, _, name = path.partition(":")
    spec = importlib.util.find_spec("zoo")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    folder = Path(spec.submodule_search_locations[0]).parent
    module_names = ModuleNames(module, folder.joinpath(*module.split(".")).with_suffix(".py"))
    (definition,) = (
        node
        for node in module_names.tree.body
        if isinstance(node, ast.ClassDef) and node.name == name
    )
    found = {}
    for node, below in zip(definition.body, [*definition.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            if ast.unparse(node.annotation).startswith("ClassVar"):
                continue
            annotation = module_names.evaluate(node.annotation, is_annotation=True)
            default = inspect.Parameter.empty
            if node.value is not None:
                default = module_names.evaluate(node.value)
            found[node.target.id] = Option(annotation, default, _read_comment(below))
    return found


def _read_comment(node: ast.stmt | None) -> str:
    """Return the text of a string that stands alone below a field."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return " ".join(str(node.value.value).split())
    return ""


def _find_init(member: Member) -> ast.arguments:
    """Return the arguments of `__init__` of a class, or of its base in the same file.

    Raises:
        LookupError: Another file has it, or a decorator writes it.
    """
    tree = parse_file(member.path, member.path.stat().st_mtime_ns)
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    name = member.class_name
    while node := classes.get(name):
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
                return statement.args
        if "dataclass" in "".join(map(ast.unparse, node.decorator_list)) or len(node.bases) > 1:
            break
        if not node.bases:
            return ast.arguments([], [], kwonlyargs=[], kw_defaults=[], defaults=[])
        name = ast.unparse(node.bases[0])
    raise LookupError(f"{member.class_name} has no __init__ in its file")


class ModuleNames(dict[str, Any]):
    """The names of a Python file, each evaluated or imported when it is first used."""

    def __init__(self, module: str, path: Path) -> None:
        super().__init__()
        self.module = module
        self.tree = parse_file(path, path.stat().st_mtime_ns)

    def evaluate(self, expression: ast.expr | None, is_annotation: bool = False) -> Any:
        """Evaluate an annotation or a default."""
        if expression is None:
            raise TypeError("an option without an annotation")
        if is_annotation and isinstance(expression, ast.Constant) and expression.value is not None:
            expression = ast.parse(str(expression.value), mode="eval").body  # in quotes
        # of zoo and of installed plug-ins only, never of a recipe
        return eval(compile(ast.Expression(expression), self.module, "eval"), {}, self)

    def __missing__(self, name: str) -> Any:
        for node in self.tree.body:
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if name == (alias.asname or alias.name):
                        source = "." * node.level + (node.module or "")
                        self[name] = self.import_name(source, alias.name)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if name == (alias.asname or alias.name.partition(".")[0]):
                        whole = importlib.import_module(alias.name)
                        self[name] = whole if alias.asname else sys.modules[name]
            elif isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
                self[name] = getattr(importlib.import_module(self.module), name)
            elif isinstance(node, ast.Assign) and name in map(ast.unparse, node.targets):
                self[name] = self.evaluate(node.value)
        if name not in self:
            raise KeyError(name)
        return self[name]

    def import_name(self, source: str, name: str) -> Any:
        """Return a name of another module, which is not imported if it is zoo's or a plug-in's."""
        module = importlib.util.resolve_name(source, self.module.rpartition(".")[0])
        # reading the text of a module costs far less than importing torch for an annotation
        if module not in sys.modules and module.partition(".")[0] in roots():
            spec = importlib.util.find_spec(module)
            if spec is not None and spec.origin is not None:
                return ModuleNames(module, Path(spec.origin))[name]
        return getattr(importlib.import_module(module), name)
