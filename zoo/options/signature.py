"""Options of a class: its keyword-only arguments, the one place where a default is written.

The options of registered members are read from the text of their files, so that validating a recipe
does not import lightning or datasets. Only what an annotation or a default names is imported, such
as a dataclass of options.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import dataclasses
import functools
import importlib.util
import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Unpack, get_args, get_origin, get_type_hints

from zoo.options.marks import Choice, Choices, Count, Differences
from zoo.registry import (
    Member,
    NotImportedError,
    are_imports_forbidden,
    find_member,
    forbid_imports,
    import_module,
    may_import,
    parse_file,
    roots,
)

ARGUMENT_INDENT = 4  # of an argument's line in a docstring


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
    """Whether all layers have one module."""

    coordinates: (
        Literal["index", "fraction", "growing", "symmetric", "interpolated", "unit"] | None
    ) = None
    """Numbers that stand for positions."""


@dataclass(frozen=True, kw_only=True)
class EveryData:
    """Options of all data; None leaves the batch size of a process."""

    global_batch_size: Count | None = None
    """Samples of a step of all processes together."""


EXTRAS: Mapping[str, type] = {"encodings": EveryEncoding, "data": EveryData}


def check_early(read: Callable[[], object]) -> None:
    """Call a function that reads options for the issues that it finds, before torch is imported.

    Dataclasses of options whose modules are not imported are built from the text of their files.
    What cannot be read without an import is left to the next call.

    Args:
        read: The function. It has no effects.

    Raises:
        RecipeError: As the function raises it.
    """
    with forbid_imports(), contextlib.suppress(NotImportedError):
        read()


@functools.cache
def extras(kind: str) -> Mapping[str, Option]:
    """Return the options common to all members of a kind."""
    return fields(EXTRAS[kind]) if kind in EXTRAS else {}


def options(cls: type) -> dict[str, Option]:
    """Return the keyword-only arguments of a class, in the order of its signature.

    An `__init__` with `**options: Unpack[SomeOptions]` hands the keys of that TypedDict to its
    base, where their defaults are.
    """
    if "__dataclass_fields__" in vars(cls):
        return fields(cls, keyword_only=True)
    declared: dict[str, Option] = {}
    handed: Collection[str] | None = None
    for init in (vars(base)["__init__"] for base in cls.__mro__ if "__init__" in vars(base)):
        hints, parameters = _read_hints(init), _read_parameters(init)
        for parameter in parameters:
            is_handed = handed is None or parameter.name in handed
            if parameter.kind is parameter.KEYWORD_ONLY and is_handed:
                option = Option(hints[parameter.name], parameter.default)
                declared.setdefault(parameter.name, option)
        catch_all = [entry.name for entry in parameters if entry.kind is entry.VAR_KEYWORD]
        unpacked = hints.get(catch_all[0]) if catch_all else None
        if get_origin(unpacked) is not Unpack:
            break
        (options_class,) = get_args(unpacked)
        handed = _narrow(handed, options_class.__annotations__)
    return _put_required_first(declared)


def read_comments(cls: type) -> dict[str, str]:
    """Return what the sections `Args:` of a class and its bases say of each argument."""
    comments: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        _, _, section = inspect.cleandoc(base.__doc__ or "").partition("\nArgs:\n")
        name = ""
        for line in section.splitlines():
            indent = len(line) - len(line.lstrip())
            if not indent:
                break
            if indent == ARGUMENT_INDENT:
                name, _, text = line.strip().partition(": ")
                comments[name] = text
            elif name:
                comments[name] += f" {line.strip()}"
    return comments


def _put_required_first(unordered: Mapping[str, Option]) -> dict[str, Option]:
    """Return options in their order, but those without a default, of whatever class, first."""
    return dict(sorted(unordered.items(), key=lambda pair: not pair[1].is_required))


def _narrow(handed: Collection[str] | None, names: Iterable[str]) -> Collection[str]:
    """Return the names that a class hands to its base, of those that were handed to it."""
    return {name for name in names if handed is None or name in handed}


def select_differences(mark: Differences, schema: Mapping[str, Option]) -> dict[str, Option]:
    """Return the options that a name of a mapping of differences may give.

    Args:
        mark: The mark of the mapping.
        schema: The options of the class that has it.
    """
    shared = {key: schema[key] for key in mark.keys if key in schema}
    members = {key: Option(Annotated[Choice, Choices(kind)], None) for key, kind in mark.members}
    return {**shared, **members}


def fields(cls: type, keyword_only: bool = False) -> dict[str, Option]:
    """Return the fields that a dataclass is made with."""
    return {**_read_class_fields(cls, keyword_only)}


@functools.cache
def _read_class_fields(cls: type, keyword_only: bool) -> Mapping[str, Option]:
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


@functools.cache
def _read_parameters(function: Any) -> Sequence[inspect.Parameter]:
    """Return the parameters of a function, read once."""
    return tuple(inspect.signature(function).parameters.values())


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default


def read_options(kind: str, name: str) -> dict[str, Option]:
    """Return the options of a registered member without importing its file.

    A member is imported after all if its annotations cannot be evaluated by themselves.

    Raises:
        KeyError: No member has this name.
    """
    member = find_member(kind, name)
    return {**read_member_options(member, member.modified, are_imports_forbidden())}


@functools.lru_cache(maxsize=1024)
def read_member_options(
    member: Member, modified: int, imports_forbidden: bool
) -> Mapping[str, Option]:
    """Return the options of a member, as `read_options` does, read once.

    Args:
        member: The member.
        modified: When its file was modified.
        imports_forbidden: Whether this runs in a block of `forbid_imports`, where classes of
            annotations are built from the text of their files.
    """
    try:
        declared: dict[str, Option] = {}
        for constructor in _list_constructors(member):
            for key, option in _read_arguments(constructor).items():
                declared.setdefault(key, option)
        return _put_required_first(declared)
    except NotImportedError:
        raise
    except Exception:  # an import tells the truth, or what is wrong with the file
        return options(member.load())


def read_option_names(kind: str, name: str) -> tuple[str, ...]:
    """Return the names of a member's options, without evaluating what they are.

    A class that cannot be read has none here.
    """
    try:
        required: dict[str, bool] = {}
        for constructor in _list_constructors(find_member(kind, name)):
            for key, is_required in _list_arguments(constructor):
                if constructor.takes(key):
                    required.setdefault(key, is_required)
        return tuple(sorted(required, key=lambda key: not required[key]))
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
    folder = Path(__file__).parents[2]
    names = ModuleNames(module, folder.joinpath(*module.split(".")).with_suffix(".py"))
    return _read_fields(*names.find_class(name))


def _read_arguments(constructor: Constructor) -> dict[str, Option]:
    """Return the keyword-only arguments of an `__init__`, or those of a dataclass."""
    names, node = constructor.names, constructor.node
    if isinstance(node, ast.ClassDef):
        return {
            key: dataclasses.replace(option, comment="")
            for key, option in _read_fields(names, node).items()
            if constructor.takes(key)
        }
    if not isinstance(node, ast.FunctionDef):
        return {}
    declared = {}
    for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
        if constructor.takes(argument.arg):
            annotation = names.evaluate(argument.annotation, is_annotation=True)
            value = inspect.Parameter.empty if default is None else names.evaluate(default)
            declared[argument.arg] = Option(annotation, value)
    return declared


def _list_arguments(constructor: Constructor) -> Iterator[tuple[str, bool]]:
    """Yield the arguments that are options, and whether they are required."""
    node = constructor.node
    if isinstance(node, ast.ClassDef):
        for key, field in _list_fields(constructor.names, node).items():
            yield key, field.statement.value is None
    elif isinstance(node, ast.FunctionDef):
        for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
            yield argument.arg, default is None


class Constructor(NamedTuple):
    """The constructor of a class: the text of an `__init__`, or of a dataclass.

    Attributes:
        names: The names of the file that has it.
        node: The function or the class.
        handed: The options that it gets from the classes before; None: all that it has.
    """

    names: ModuleNames
    node: ast.stmt
    handed: Collection[str] | None

    def takes(self, name: str) -> bool:
        """Return whether an option of this name can be given."""
        return self.handed is None or name in self.handed


def _list_constructors(member: Member) -> Iterator[Constructor]:
    """Yield what makes an object of a member's class, as `options` follows it.

    Nothing is yielded where neither the class nor a base has arguments.

    Raises:
        LookupError: It is in none of the files of zoo and of plug-ins.
    """
    handed: Collection[str] | None = None
    names, node = ModuleNames(member.module, member.path).find_class(member.class_name)
    while True:
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
                yield Constructor(names, statement, handed)
                unpacked = _find_unpacked(statement)
                if unpacked is None:
                    return
                handed = _narrow(handed, _list_fields(*names.find_class(unpacked)))
        if _is_dataclass(node):
            if not _is_keyword_only(node):
                raise LookupError(f"some fields of {node.name} may be no options")
            yield Constructor(names, node, handed)
            return
        if not node.bases:
            return
        # their order is that of Python, which an import would have to compute
        if len(node.bases) > 1:
            raise LookupError(f"{node.name} has several bases")
        names, node = names.find_class(ast.unparse(node.bases[0]))


def _find_unpacked(init: ast.FunctionDef) -> str | None:
    """Return the class of `**options: Unpack[Class]`; None if there is no such argument."""
    catch_all = init.args.kwarg
    annotation = None if catch_all is None else catch_all.annotation
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Unpack":
        return ast.unparse(annotation.slice)
    return None


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


def _is_keyword_only(node: ast.ClassDef) -> bool:
    return any("kw_only=True" in ast.unparse(decorator) for decorator in node.decorator_list)


def _read_fields(names: ModuleNames, node: ast.ClassDef) -> dict[str, Option]:
    """Return the fields of a dataclass and of its bases, as its `__init__` takes them."""
    declared: dict[str, Option] = {}
    for key, field in _list_fields(names, node).items():
        annotation = field.names.evaluate(field.statement.annotation, is_annotation=True)
        default: Any = inspect.Parameter.empty
        if field.statement.value is not None:
            default = field.names.evaluate(field.statement.value)
        if isinstance(default, dataclasses.Field):
            if not default.init:
                continue
            default = _default(default)
        declared[key] = Option(annotation, default, field.comment)
    return declared


class FieldText(NamedTuple):
    """The text of a field of a dataclass, and the names of the file that has it."""

    names: ModuleNames
    statement: ast.AnnAssign
    comment: str


def _list_fields(names: ModuleNames, node: ast.ClassDef) -> dict[str, FieldText]:
    """Return the fields of a dataclass or a TypedDict, and of its bases, not evaluated."""
    declared: dict[str, FieldText] = {}
    for base in map(ast.unparse, node.bases):
        if base != "TypedDict":
            declared |= _list_fields(*names.find_class(base))
    for statement, below in zip(node.body, [*node.body[1:], None], strict=True):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        if not ast.unparse(statement.annotation).startswith("ClassVar"):
            declared[statement.target.id] = FieldText(names, statement, _read_comment(below))
    return declared


def _define(names: ModuleNames, node: ast.ClassDef) -> Any:
    """Return a dataclass that is defined by the text of its file, which is not imported.

    Names in its methods are looked up when they are called.
    """
    definition = copy.deepcopy(node)
    for part in ast.walk(definition):
        # annotations of methods would be evaluated too, and most name tensors
        if isinstance(part, ast.FunctionDef):
            part.returns = None
        elif isinstance(part, ast.arg):
            part.annotation = None
    for part in definition.body:
        if isinstance(part, ast.AnnAssign):
            part.annotation = _read_annotation(part.annotation)
    for name in _list_body_names(definition):
        # the body of a class finds only names that a dict has already
        with contextlib.suppress(KeyError):
            names[name]
    module = ast.fix_missing_locations(ast.Module([definition], []))
    names["__name__"] = names.module
    # of zoo and of installed plug-ins only, never of a recipe
    exec(compile(module, names.module, "exec", dont_inherit=True), names)
    return names[node.name]


def _list_body_names(definition: ast.ClassDef) -> Iterator[str]:
    """Yield the names that are evaluated when a class is defined, without those in its methods."""
    waiting: list[ast.AST] = [definition]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.FunctionDef):
            waiting += [*node.decorator_list, *node.args.defaults]
            waiting += filter(None, node.args.kw_defaults)
        else:
            waiting += ast.iter_child_nodes(node)


def _read_annotation(expression: ast.expr) -> ast.expr:
    """Return an annotation without quotes, with callables shortened."""
    if isinstance(expression, ast.Constant) and expression.value is not None:
        expression = ast.parse(str(expression.value), mode="eval").body
    return _shorten_callables(expression)


def _read_comment(node: ast.stmt | None) -> str:
    """Return the text of a string that stands alone below a field."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return " ".join(str(node.value.value).split())
    return ""


def _shorten_callables(expression: ast.expr) -> ast.expr:
    """Replace each `Callable[...]` by `Callable[..., object]`: none of its classes is imported.

    No recipe holds a function: the classes that it takes and returns are for type checkers.
    """
    shortened = copy.deepcopy(expression)
    for node in ast.walk(shortened):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Callable":
            node.slice = ast.parse("..., object", mode="eval").body
    return shortened


class ModuleNames(dict[str, Any]):
    """The names of a Python file, each evaluated or imported when it is first used."""

    def __init__(self, module: str, path: Path) -> None:
        super().__init__()
        self.module = module
        self.bindings = _list_bindings(parse_file(path, path.stat().st_mtime_ns))

    def evaluate(self, expression: ast.expr | None, is_annotation: bool = False) -> Any:
        """Evaluate an annotation or a default."""
        if expression is None:
            raise TypeError("an option without an annotation")
        expression = (_read_annotation if is_annotation else _shorten_callables)(expression)
        # of zoo and of installed plug-ins only, never of a recipe
        return eval(compile(ast.Expression(expression), self.module, "eval"), {}, self)

    def __missing__(self, name: str) -> Any:
        binding = self.find_binding(name, enters_imported=False)
        names, node = binding.names, binding.statement
        value: Any
        if isinstance(node, ast.ImportFrom):
            value = getattr(import_module(names.resolve(node)), binding.name)
        elif isinstance(node, ast.Import):
            # `import a.b` binds a, and `import a.b as c` the module itself
            modules = {alias.asname or alias.name.partition(".")[0]: alias for alias in node.names}
            whole = import_module(modules[name].name)
            value = whole if modules[name].asname else sys.modules[name]
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            value = names.evaluate(node.value)
        elif (
            isinstance(node, ast.ClassDef) and _is_dataclass(node) and not may_import(names.module)
        ):
            value = _define(names, node)
        else:
            value = getattr(import_module(names.module), binding.name)
        self[name] = value
        return value

    def find_binding(self, name: str, *, enters_imported: bool) -> Binding:
        """Return the statement that binds a name, in the file of zoo or of a plug-in that has it.

        Args:
            name: The name in this file.
            enters_imported: Whether files are read too whose modules are imported.

        Raises:
            KeyError: Nothing binds it.
        """
        names = self
        # a loop, so that the stack does not grow with the number of files
        while True:
            statement, source = names.bindings[name]
            if not isinstance(statement, ast.ImportFrom):
                return Binding(names, statement, source)
            module = names.resolve(statement)
            # reading the text of a module costs far less than importing torch for an annotation
            is_entered = enters_imported or module not in sys.modules
            imported = names.open_module(module) if is_entered else None
            if imported is None:
                return Binding(names, statement, source)
            names, name = imported, source

    def find_class(self, name: str) -> tuple[ModuleNames, ast.ClassDef]:
        """Return the definition of a class and the names of the file that has it.

        Raises:
            LookupError: It is in none of the files of zoo and of plug-ins.
        """
        binding = self.find_binding(name, enters_imported=True)
        if not isinstance(binding.statement, ast.ClassDef):
            raise LookupError(f"{self.module} has no class {name}")
        return binding.names, binding.statement

    def resolve(self, node: ast.ImportFrom) -> str:
        """Return the full name of the module that names are imported from."""
        source = "." * node.level + (node.module or "")
        return importlib.util.resolve_name(source, self.module.rpartition(".")[0])

    def open_module(self, module: str) -> ModuleNames | None:
        """Return the names of a module of zoo or of a plug-in; None for one of another package."""
        package, *parts = module.split(".")
        folder = roots().get(package)
        if folder is None:
            return None
        # found without importlib, which would import the package that the module is in
        path = folder.joinpath(*parts)
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        return ModuleNames(module, path) if path.is_file() else None


class Binding(NamedTuple):
    """A statement that binds a name at the top of a file.

    Attributes:
        names: The names of the file.
        statement: The statement.
        name: The name there; for an import, in the module that it is imported from.
    """

    names: ModuleNames
    statement: ast.stmt
    name: str


@functools.cache
def _list_bindings(tree: ast.Module) -> Mapping[str, tuple[ast.stmt, str]]:
    """Return {name: (the last statement at the top of a file that binds it, its name there)}."""
    bindings: dict[str, tuple[ast.stmt, str]] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            bindings |= {alias.asname or alias.name: (node, alias.name) for alias in node.names}
            continue
        if isinstance(node, ast.Import):
            names = [alias.asname or alias.name.partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            names = [node.name]
        elif isinstance(node, ast.Assign):
            names = [*map(ast.unparse, node.targets)]
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            names = [ast.unparse(node.target)]
        else:
            continue
        bindings |= {name: (node, name) for name in names}
    return bindings
