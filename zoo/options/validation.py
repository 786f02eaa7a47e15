"""Validate plain data against annotations: typed values, and an issue for each misfit."""

from __future__ import annotations

import dataclasses
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from zoo.errors import ARGUMENT, ConfigIssue, Message, OptionError
from zoo.options import Between, Choice, Choices, Differences, Matches
from zoo.options.description import TYPES, describe_type
from zoo.options.plain import (
    PlainReader,
    format_value,
    is_interpolation,
    join,
    list_ancestors,
    locate,
    to_plain,
)
from zoo.options.signature import (
    Option,
    extras,
    fields,
    read_member_options,
    read_options,
    select_differences,
)
from zoo.options.unknown import (
    Explanation,
    OptionOwner,
    explain_key,
    explain_name,
    write_name_first,
)
from zoo.registry import Member, are_imports_forbidden, find_member, names
from zoo.suggestions import TYPO, find_meant, join_words, list_words, nearest, offer

REFUSED_MEMBERS: Mapping[tuple[str, str], tuple[str, str]] = MappingProxyType(
    {
        ("optim", "lbfgs"): (
            "it evaluates the loss several times in a step, on one batch of all samples",
            "choose adamw",
        ),
        ("optim", "sparse_adam"): (
            "it is for sparse gradients, which no model here has",
            "choose adam",
        ),
        **{
            ("optim", name): (
                "zoo 0.4 removed it, since no transformer here uses it",
                "choose adamw",
            )
            for name in ("adamax", "adagrad", "adadelta", "asgd", "rprop")
        },
        ("executors", "ray"): ("zoo 0.4 removed it", "choose slurm or local"),
    }
)
"""{(kind, name): (why no recipe can have it, what to do instead)}"""

T = TypeVar("T")

MAX_FLOAT32 = (2 - 2**-23) * 2.0**127
EXACT_TYPES: Mapping[Any, tuple[type, ...]] = MappingProxyType(
    {
        **{kind: (kind,) for kind in (bool, int, float, str)},
        **{kind | None: (kind, type(None)) for kind in (bool, int, float, str)},
    }
)
"""{annotation: types of its values that are kept unchanged}"""

SEVERAL = "a run has one value; a comparison tries several"
NO_MEMBER = ("none", "None", "no", "off")
NOTHING = ("none", "nil", "nothing", "undefined", "n/a", "na")
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)
BOOLEANS = MappingProxyType({"yes": "true", "on": "true", "no": "false", "off": "false"})


class Validator:
    """One walk over a recipe, which continues after an issue and keeps the value unchanged.

    Args:
        locations: Where each key was given.
        reported: Keys with an issue already; nothing is missing at or below them.
        interpolates: Whether a string with `${` in it stands for another value. It does in a
            recipe, and not in a file that zoo wrote.
        elsewhere: Returns the full keys of a whole recipe, which an unknown key may mean.
    """

    def __init__(
        self,
        locations: Mapping[str, str],
        reported: frozenset[str] = frozenset(),
        *,
        interpolates: bool = True,
        elsewhere: Callable[[], Iterable[str]] | None = None,
    ) -> None:
        self.given = locations
        self.reported = reported
        self.interpolates = interpolates
        self.elsewhere = elsewhere
        # nobody asks where an entry of such a file was given
        self.is_stored = not interpolates and not locations
        self.issues: list[ConfigIssue] = []
        self.locations: dict[str, str] = {}  # of every key that was validated
        self.untyped: set[str] = set()  # keys with a wrong type, or that wait for an interpolation

    def validate(self, annotation: Any, value: Any, key: str) -> Any:
        """Return a value with the type of its annotation."""
        # data that zoo wrote have no locations
        self.locations[key] = locate(self.given, key) if self.given else ""
        if annotation is Any:
            return value
        origin = get_origin(annotation)
        if self.interpolates and isinstance(value, str) and is_interpolation(value):
            self.untyped.add(key)
            return value
        if origin is Annotated:
            inner, *marks = get_args(annotation)
            if inner is Choice:
                return self.validate_choice(marks[0].kind, value, key)
            if isinstance(marks[0], Choices):
                return self.validate_choices(marks[0], value, key)
            typed = self.validate(inner, value, key)
            if key not in self.untyped:
                self.check_marks(marks, typed, key)
            return typed
        if origin in (Union, types.UnionType):
            return self.validate_union(annotation, value, key)
        if dataclasses.is_dataclass(annotation):
            return self.validate_dataclass(annotation, value, key)
        if origin in (list, tuple, Sequence):
            return self.validate_sequence(annotation, value, key)
        if origin in (dict, Mapping):
            return self.validate_mapping(annotation, value, key)
        if not fits(annotation, value):
            return self.refuse_type(annotation, value, key, _correct(annotation, value))
        # 1 is valid where a float is expected, and is then 1.0 everywhere
        return float(value) if annotation is float else value

    def validate_fields(
        self,
        schema: Mapping[str, Option],
        given: Mapping[str, Any],
        key: str,
        others: Sequence[str] = (),
        partial: bool = False,
        member: OptionOwner | None = None,
    ) -> dict[str, Any]:
        """Return the typed values of a mapping, with the defaults of the rest unless `partial`.

        `others` are words that are read elsewhere, and may be what an unknown word means. `member`
        is the one whose options they are.
        """
        typed = {}
        above = f"{key}." if key else ""
        for word, value in given.items():
            if word not in schema:
                explanation = self.explain_unknown(word, value, schema, key, others, member)
                # what is missing at or below the key that was meant follows from that
                self.reported |= {join(key, name) for name in explanation.meant}
                typed[word] = self.refuse(join(key, word), value, "unknown key", explanation.remedy)
        for word, option in schema.items():
            if word in given:
                marks, value, full = get_args(option.annotation)[1:2], given[word], above + word
                if marks and isinstance(marks[0], Differences) and isinstance(value, dict):
                    differing = select_differences(marks[0], schema)
                    typed[word] = self.validate_differences(differing, value, full)
                else:
                    typed[word] = self.validate(option.annotation, value, full)
            elif partial:
                continue
            elif option.is_required:
                hint = f"expected {describe_type(option.annotation)}"
                self.refuse_absence(above + word, hint, join(key, "name") if member else key)
            else:
                typed[word] = type_default(option)
        return typed

    def explain_unknown(
        self,
        word: str,
        value: Any,
        schema: Mapping[str, Option],
        key: str,
        others: Sequence[str],
        member: OptionOwner | None,
    ) -> Explanation:
        """Explain an unknown key with a value."""
        if member and isinstance(value, dict | None) and word in names(member.kind):
            return Explanation(write_name_first(word, value))
        elsewhere = self.elsewhere
        if not key and isinstance(value, dict):
            # a section, and not a key without its section
            others, elsewhere = [name for name in others if "." not in name], None
        return explain_key(word, schema, key, others=others, member=member, elsewhere=elsewhere)

    def validate_differences(
        self, schema: Mapping[str, Option], value: Mapping[str, Any], key: str
    ) -> Mapping[str, Mapping[str, Any]]:
        """Return {name: {option: value}} with typed values of the options that a name gives."""
        typed = {}
        self.locations[key] = locate(self.given, key)
        for name, changes in value.items():
            full = join(key, name)
            if not isinstance(changes, dict | None):
                options = join_words(list(schema)[:2])
                hint = f"write the options that differ, such as {options}, or {{}} for none"
                typed[name] = self.refuse_type(Mapping[str, Any], changes, full, hint)
                continue
            typed_changes = self.validate_fields(schema, changes or {}, full, partial=True)
            self.locations[full] = locate(self.given, full)
            typed[name] = MappingProxyType(typed_changes)
        return MappingProxyType(typed)

    def copy(self) -> Validator:
        """Return a validator of the same data that has found nothing yet."""
        return Validator(
            self.given, self.reported, interpolates=self.interpolates, elsewhere=self.elsewhere
        )

    def refuse(
        self, key: str, value: Any, problem: str | Message, remedy: str | Message = ""
    ) -> Any:
        """Report an issue, and return the value."""
        self.issues.append(ConfigIssue(locate(self.given, key), key, problem, remedy))
        return value

    def refuse_absence(self, key: str, remedy: str, above: str = "") -> None:
        """Report a key that is missing, where `above` was given, since that is what asks for it."""
        if not self.reported.isdisjoint(list_ancestors(key)):
            return
        is_removed = self.given.get(key) == ARGUMENT
        message = "missing, as it was removed" if is_removed else "missing"
        origin = locate(self.given, key if is_removed or not above else above)
        if origin == ARGUMENT and not is_removed and above and above != key.rpartition(".")[0]:
            remedy += ", since a new name drops the options of the old one"
        self.issues.append(ConfigIssue(origin, key, message, remedy))

    def refuse_type(self, annotation: Any, value: Any, key: str, remedy: str | Message = "") -> Any:
        self.untyped.add(key)
        message = f"expected {describe_type(annotation)}, got {format_value(value)}"
        return self.refuse(key, value, message, remedy)

    def check_marks(self, marks: Sequence[Any], typed: Any, key: str) -> None:
        """Report a value outside the bounds or patterns of its annotation."""
        for mark in marks:
            if isinstance(mark, Between) and not mark.low <= typed <= mark.high:
                self.refuse(key, typed, f"must be {mark.explain(typed)}, got {format_value(typed)}")
            if isinstance(mark, Matches) and not any(p.fullmatch(typed) for p in mark.patterns):
                self.refuse(key, typed, f"{format_value(typed)} is {mark.problem}", mark.remedy)

    def validate_union(self, annotation: Any, value: Any, key: str) -> Any:
        """Return the first member that fits; otherwise report the issues of the closest one."""
        members = get_args(annotation)
        if value is None and type(None) in members:
            return None
        for member in members:
            # long lists of `float | None` take no trial for each number
            if member not in TYPES:
                break
            if fits(member, value):
                return float(value) if member is float else value
        # nearly every value has the form of one member only
        similar = [member for member in members if has_form(member, value)]
        if len(similar) == 1:
            return self.validate(similar[0], value, key)
        # each member is tried by itself, so that the issues of others are forgotten
        trials = []
        for member in members:
            trial = self.copy()
            trials.append((trial, trial.validate(member, value, key)))
        fitting = [pair for pair in trials if not pair[0].issues]
        closest = fitting or [pair for pair in trials if key not in pair[0].untyped]
        if not closest:
            remedies = (trial.issues[0].remedy for trial, _ in trials if trial.issues[0].remedy)
            if isinstance(value, list):
                # a number is no likelier than a text
                remedies = (hint for hint in remedies if hint != SEVERAL)
            return self.refuse_type(annotation, value, key, next(remedies, ""))
        trial, typed = closest[0]
        self.issues += trial.issues
        self.locations |= trial.locations
        self.untyped |= trial.untyped
        return typed

    def validate_sequence(self, annotation: Any, value: Any, key: str) -> Any:
        members = get_args(annotation)
        if not isinstance(value, list):
            trial = self.copy()
            trial.validate(annotation, [value], key)
            # a value that fits by itself only lacks its brackets
            fits_alone = value is not None and not trial.issues
            hint = f"write [{format_value(value)}]" if fits_alone else _bracket(value)
            return self.refuse_type(annotation, value, key, hint)
        if get_origin(annotation) is not tuple or members[-1] is Ellipsis:
            members = members[:1] * len(value)
        if len(members) != len(value):
            return self.refuse_type(annotation, value, key)
        if self.is_stored and have_types(members, value):
            return tuple(value)
        typed = []
        for number, (member, item) in enumerate(zip(members, value, strict=True)):
            typed.append(self.validate(member, item, join(key, number)))
        return tuple(typed)

    def validate_mapping(self, annotation: Any, value: Any, key: str) -> Any:
        if not isinstance(value, dict):
            return self.refuse_type(annotation, value, key)
        member = get_args(annotation)[1]
        if self.is_stored and have_types([member] * len(value), value.values()):
            return MappingProxyType({**value})
        return MappingProxyType(
            {word: self.validate(member, item, join(key, word)) for word, item in value.items()}
        )

    def validate_dataclass(self, cls: Any, value: Any, key: str) -> Any:
        if not isinstance(value, dict | None):
            hint = f"give its keys, such as {list_words(fields(cls))}"
            return self.refuse_type(cls, value, key, hint)
        before = len(self.issues) + len(self.untyped)
        schema = fields(cls)
        typed = self.validate_fields(schema, value or {}, key)
        if len(self.issues) + len(self.untyped) > before:
            return typed
        # required ones only: others have their default
        if typed.keys() < schema.keys():
            # below a key with an issue, which is all that is reported
            return typed
        try:
            return cls(**typed)
        except OptionError as error:
            return self.refuse(join(key, error.key), value, error.message)

    def validate_choices(self, mark: Choices, value: Any, key: str) -> Any:
        """Return a tuple of choices; a single one is short for a list of it."""
        kind = mark.kind
        annotation = Annotated[Choice, Choices(kind)]
        is_nothing = value in (None, False) or (isinstance(value, str) and value in NO_MEMBER)
        if not isinstance(value, str | dict | list) or (is_nothing and mark.may_be_empty):
            hint = "write [] for none" if is_nothing and mark.may_be_empty else ""
            if is_nothing and "none" in names(kind):
                hint = "write none"
            return self.refuse_type(annotation, value, key, hint)
        entries = value if isinstance(value, list) else [value]
        if not isinstance(value, list):
            # keys of the one entry were given without its number
            entry_key, above = join(key, 0), join(key, "")
            moved = {
                join(entry_key, given_key.removeprefix(above)): where
                for given_key, where in self.given.items()
                if given_key.startswith(above)
            }
            self.given = {**self.given, **moved}
        if not entries and not mark.may_be_empty:
            return self.refuse(key, value, f"a list of no {kind}", nearest("", names(kind)))
        typed = []
        for number, entry in enumerate(entries):
            typed.append(self.validate(annotation, entry, join(key, number)))
        return tuple(typed)

    def validate_choice(self, kind: str, value: Any, key: str) -> Any:
        """Return a Choice with every option of its class, if there is such a class."""
        written = {"name": value} if isinstance(value, str) else value
        if not isinstance(written, dict):
            hint = "remove the key, or write its options below it" if written is None else ""
            return self.refuse_type(Annotated[Choice, Choices(kind)], written, key, hint)
        if "name" not in written and (
            self.refuse_misspelt_name(written, key) or self.refuse_nested_name(kind, written, key)
        ):
            return written
        member = self.find_member(kind, written.get("name"), join(key, "name"))
        if member is None:
            return written
        member_options = read_member_options(member, member.modified, are_imports_forbidden())
        extra = extras(kind)
        assert not {"name", *extra} & member_options.keys(), (
            f"{written['name']} takes an option that every member of {kind} has"
        )
        without_name = {word: child for word, child in written.items() if word != "name"}
        owner = OptionOwner(kind, str(written["name"]))
        typed = self.validate_fields(
            {**member_options, **extra}, without_name, key, ("name",), member=owner
        )
        # options of every member that are null leave what its class or its own options say
        chosen = {
            word: child
            for word, child in typed.items()
            if word in member_options or child is not None
        }
        return Choice(str(written["name"]), MappingProxyType(chosen))

    def refuse_misspelt_name(self, given: Mapping[str, Any], key: str) -> bool:
        """Report the key of a choice without a name that is likely to be it, if there is one."""
        for word, value in given.items():
            if find_meant(word, ["name"], TYPO) and not isinstance(value, dict | list):
                hint = offer(word, ["name"], key)
                self.refuse(join(key, word), value, "unknown key", hint)
                return True
        return False

    def refuse_nested_name(self, kind: str, given: Mapping[str, Any], key: str) -> bool:
        """Report `{rope: {base: 3}}`, which is `{name: rope, base: 3}`, if it is that."""
        if len(given) != 1:
            return False
        ((word, value),) = given.items()
        if word not in names(kind) or not isinstance(value, dict | None):
            return False
        self.refuse(join(key, word), value, "a name is no key", write_name_first(word, value))
        return True

    def find_member(self, kind: str, name: Any, key: str) -> Member | None:
        """Return the member of a name; None, with an issue, if there is no such member."""
        self.locations[key] = locate(self.given, key)
        # what it refers to is known once the recipe is complete, and checked then
        if is_interpolation(name):
            self.untyped.add(key)
            return None
        if name is None:
            self.refuse_absence(key, nearest("", names(kind)))
            return None
        try:
            return find_member(kind, str(name))
        except KeyError:
            if refused := REFUSED_MEMBERS.get((kind, str(name))):
                reason, hint = refused
                self.refuse(key, name, f"{name} cannot train here: {reason}", hint)
                return None
            hint = explain_name(kind, str(name))
            self.refuse(key, name, f"there is no {format_value(name)} among {kind}", hint)
            return None


def read_data(cls: type[T], plain: Any) -> T:
    """Build a dataclass from plain data that zoo wrote, such as a JSON file.

    Raises:
        ValueError: The data is that of something else; the message names the first issue.
    """
    validator = Validator({}, interpolates=False)
    typed = validator.validate(cls, plain, "")
    if validator.issues:
        raise ValueError(str(validator.issues[0]))
    if not isinstance(typed, cls):
        # validate_dataclass takes null for a mapping without entries
        raise ValueError("nothing is given")
    return typed


def check_options(
    schema: Mapping[str, Option], given: Mapping[str, Any], member: OptionOwner | None = None
) -> dict[str, Any]:
    """Return the typed values of options that a Python program passed, without defaults.

    Raises:
        OptionError: For the first option that is unknown or has a value that cannot be used. The
            message says what a recipe with this option would say.
    """
    issues: list[ConfigIssue] = []
    reader = PlainReader(issues)
    plain = {key: reader.read(value, key) for key, value in given.items()}
    validator = Validator({"": ARGUMENT})
    typed = validator.validate_fields(schema, plain, "", partial=True, member=member)
    for key in validator.untyped if not validator.issues else ():
        validator.refuse(key, None, "an interpolation has no recipe here to refer to")

    for issue in (*issues, *validator.issues):
        ending = ("; ", issue.remedy) if issue.remedy else ()
        raise OptionError(issue.key, Message(f"{issue.key}: ", issue.problem, *ending))
    return typed


def validate_variants(
    validator: Validator, data: Choice, variants: Any, key: str
) -> Mapping[str, Mapping[str, Any]]:
    """Return {name: {option: value}}, changes of the options of the data, with their types."""
    schema = read_options("data", data.name)
    validated = {}
    for name, change in variants.items() if isinstance(variants, dict) else ():
        full = join(key, name)
        changes = change if isinstance(change, dict) else {}
        if not changes and not isinstance(change, str | int | float | list):
            hint = "write {option: value} of data, or remove it"
            validator.refuse(full, change, "it changes nothing", hint)
        member = OptionOwner("data", data.name)
        typed = validator.validate_fields(schema, changes, full, partial=True, member=member)
        validated[name] = MappingProxyType(typed)
    return MappingProxyType(validated)


def explain_misfit(data: Choice, option: str, value: object) -> str:
    """Return what is wrong with a typed value of an option of the data; empty where nothing is."""
    validator = Validator({})
    annotation = read_options("data", data.name)[option].annotation
    validator.validate(annotation, to_plain(value), option)
    return str(validator.issues[0].problem) if validator.issues else ""


def type_default(option: Option) -> Any:
    """Return the default of an option, typed as if it had been written in the recipe."""
    if option.default is None or type(option.default) in (bool, option.annotation):
        # most defaults; nothing stands for another value there, as a name may for a choice
        return option.default
    validator = Validator({})
    typed = validator.validate(option.annotation, to_plain(option.default), "")
    assert not validator.issues, f"a default that its own annotation refuses: {validator.issues}"
    return typed


def has_form(annotation: Any, value: object) -> bool:
    """Return whether a value has the outermost type of an annotation, whatever it contains."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated and isinstance(arguments[1], Choices):
        return isinstance(value, str | dict if arguments[0] is Choice else str | dict | list)
    if origin is Annotated:
        return has_form(arguments[0], value)
    if origin in (Union, types.UnionType):
        return any(has_form(member, value) for member in arguments)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return isinstance(value, list) and len(value) == len(arguments)
    if origin in (list, tuple, Sequence):
        return isinstance(value, list)
    if dataclasses.is_dataclass(annotation) or origin in (dict, Mapping):
        return isinstance(value, dict)
    return annotation is Any or fits(annotation, value)


def have_types(annotations: Sequence[Any], values: Iterable[Any]) -> bool:
    """Return whether all values are scalars of exactly these types, and numbers are finite.

    Long curves are validated by one call. False says nothing: a value may fit nevertheless.
    """
    for annotation, value in zip(annotations, values, strict=True):
        if type(value) not in EXACT_TYPES.get(annotation, ()):
            return False
        if type(value) is float and not -MAX_FLOAT32 <= value <= MAX_FLOAT32:
            return False
    return True


def fits(annotation: Any, value: object) -> bool:
    """Return whether a scalar has a type: true is no number, 1 is a float, 1.0 is no int."""
    if get_origin(annotation) is Literal:
        return any(
            type(value) is type(literal) and value == literal for literal in get_args(annotation)
        )
    assert annotation in TYPES, f"no recipe can hold {annotation}"
    if annotation is float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        # a model computes in float32, in which larger numbers are infinite
        return abs(value) <= MAX_FLOAT32
    return type(value) is annotation


def _correct_number(written: str) -> str:
    """Return a number that is written as 10%, as 0,001 or with a dash for its minus."""
    plain = written.strip().replace("\u2212", "-").replace("\u2013", "-")
    if re.fullmatch(r"[-+]?0,\d+", plain):
        plain = plain.replace(",", ".")
    if plain.endswith("%") and NUMBER.fullmatch(plain[:-1]):
        return f"{float(plain[:-1]) / 100:g}"
    return plain if plain != written.strip() and NUMBER.fullmatch(plain) else ""


def _bracket(value: object) -> str:
    """Return how a list is written where a string looks like one: 1,2 or (1, 2)."""
    inner = value.strip("()[]{} ") if isinstance(value, str) else ""
    return f"write [{inner}]" if "," in inner else ""


def _correct(annotation: Any, value: object) -> str:
    """Return what to write instead of a scalar that does not fit, where it can be guessed."""
    if get_origin(annotation) is Literal:
        meant = find_meant(str(value), map(str, get_args(annotation)))
        return offer(str(value), meant) if meant else ""
    if annotation is int and isinstance(value, float) and value.is_integer():
        # larger floats are no exact integers
        return f"write {value:.0f}" if abs(value) < 1e15 else ""
    if annotation is bool and isinstance(value, str) and value.lower() in BOOLEANS:
        return f"write {BOOLEANS[value.lower()]}"
    if annotation is bool and value in (0, 1):
        return f"write {str(bool(value)).lower()}"
    if annotation is types.NoneType and isinstance(value, str) and value.lower() in NOTHING:
        return "write null"
    if annotation is types.NoneType and value is False:
        return "write null"
    if annotation in (int, float) and isinstance(value, str):
        if NUMBER.fullmatch(value.strip()):
            return "write it without quotes"
        if corrected := _correct_number(value):
            return f"write {corrected}"
        parts = value.split(",")
        if len(parts) > 1 and all(NUMBER.fullmatch(part.strip()) for part in parts):
            return SEVERAL
    if annotation in (int, float) and isinstance(value, list) and len(value) > 1:
        return SEVERAL
    return "put it in quotes" if annotation is str and isinstance(value, int | float) else ""
