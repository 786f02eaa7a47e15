"""Load a recipe: YAML and overrides in; a typed, frozen Recipe out, or all issues at once."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args, get_type_hints

from zoo.config.compose import Composer, find_recipe, is_fragment, resolve_interpolations
from zoo.config.overrides import BATCHES, Change, Edit, Overrides, apply_edit, list_edits
from zoo.config.schema import EvaluateOptions, Sections, TrainerOptions
from zoo.config.tree import Tree, collect_issues, dump, read_plain, show_path
from zoo.errors import ARGUMENT, ConfigIssue, Message, RecipeError, Setting
from zoo.options import Choice, Choices
from zoo.options.plain import (
    format_value,
    is_interpolation,
    join,
    list_ancestors,
    list_children,
    locate,
    to_plain,
    walk,
)
from zoo.options.signature import fields, read_option_names, read_options
from zoo.options.validation import Validator, validate_variants
from zoo.registry import find, names
from zoo.suggestions import find_meant, join_words

SECTIONS = MappingProxyType(fields(Sections))
OTHERS = ("extends",)  # keys of a file that are no section
DEFAULT = "by default"
FORMER_KEY = "attention"  # of a model, in version 0.3


@dataclass(frozen=True, kw_only=True)
class Recipe(Sections):
    """Everything a run is made of: its sections, its name, and the location of each given key."""

    name: str
    locations: Mapping[str, str] = field(
        default_factory=lambda: MappingProxyType({}), compare=False, repr=False
    )

    def plain(self) -> dict[str, Any]:
        """Return the sections as dicts, lists and scalars, which `from_plain` reads back."""
        plain = {section: to_plain(getattr(self, section)) for section in SECTIONS}
        # hashes of recipes without stages stay those of versions that had none
        return plain if self.stages else {key: plain[key] for key in plain if key != "stages"}

    def yaml(self) -> str:
        """Return `plain` as YAML text."""
        return dump(self.plain())

    @property
    def encodings(self) -> tuple[str, ...]:
        """The names of the encodings of the model and of its types of layers, each once."""
        encodings = dict.fromkeys(_find_encodings(self.model.options))
        return tuple(encodings)

    @property
    def hash(self) -> str:
        """Eight hexadecimal digits that differ between recipes with different options."""
        return hashlib.sha256(json.dumps(self.plain(), sort_keys=True).encode()).hexdigest()[:8]

    def make_issue(
        self, key: str, problem: str | Message, remedy: str | Message = ""
    ) -> ConfigIssue:
        """Return an issue of a key, located where it or the nearest key above it was given."""
        return ConfigIssue(locate(self.locations, key) or self.name, key, problem, remedy)


def _find_encodings(options: Mapping[str, Any]) -> Iterator[str]:
    for choice in options.get("encoding", ()):
        yield choice.name
    for changes in (options.get("layer_types") or {}).values():
        yield from _find_encodings(changes)


def load(path_or_name: str | Path, overrides: Overrides = ()) -> Recipe:
    """Load the recipe of a file or a registered name, changed by overrides.

    Args:
        path_or_name: A YAML file, with or without its suffix, or the name of a registered recipe.
        overrides: {key: value}, or a list of `Change` and `Removal`.

    Raises:
        RecipeError: With every issue of the files and of the overrides.
    """
    edits = list_edits(overrides)
    issues: list[ConfigIssue] = []
    try:
        path = find_recipe(path_or_name)
        tree = Composer(issues).compose(path)
    except RecipeError as error:
        raise RecipeError(*issues, *error.issues) from None
    if not had_linear_attention(tree.data):
        # the resolved recipe of a run of version 0.3
        tree = replace(tree, data=update_sections(tree.data))
    return _build_recipe(tree, edits, issues, path.stem, is_fragment(path), show_path(path))


def check_edits(edits: Sequence[Edit]) -> None:
    """Refuse changes of a stored recipe that are wrong for any recipe, before it is read.

    They are those of sections that have the same options in all recipes, such as `evaluate`. If
    there are changes of other sections too, all of them wait for the recipe, to be reported
    together.

    Raises:
        RecipeError: With every issue that was found.
    """
    validator = Validator({"": ARGUMENT})
    for edit in edits:
        section, _, word = edit.key.partition(".")
        cls = SECTIONS[section].annotation if section in SECTIONS else None
        if not dataclasses.is_dataclass(cls):
            return
        # a mapping, and what is below an option, adds to what the recipe has there
        if "." in word or not word or not isinstance(edit, Change):
            continue
        if not isinstance(edit.value, Mapping):
            values = {word: edit.value}
            validator.validate_fields(fields(cls), values, section, partial=True)  # type: ignore[arg-type]
    if validator.issues:
        raise RecipeError(*validator.issues)


def from_plain(
    data: Mapping[str, Any], overrides: Overrides = (), *, origin: str, name: str
) -> Recipe:
    """Return the recipe of plain data, such as a checkpoint holds.

    Args:
        data: The sections, as `Recipe.plain` gives them.
        overrides: {key: value}, or a list of `Change` and `Removal`.
        origin: The location of every key, for messages.
        name: The name of the recipe.

    Raises:
        RecipeError: With every issue of the data and of the overrides.
    """
    edits = list_edits(overrides)
    issues: list[ConfigIssue] = []
    try:
        tree = read_plain(update_sections(dict(data)), origin, issues)
    except RecipeError as error:
        raise RecipeError(*issues, *error.issues) from None
    return _build_recipe(tree, edits, issues, name)


def had_linear_attention(sections: Mapping[str, Any]) -> bool:
    """Return whether version 0.3 stored a recipe, of a model whose layers had linear attention."""
    model = sections.get("model")
    return isinstance(model, Mapping) and model.get(FORMER_KEY) == "linear"


def update_sections(sections: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a stored recipe with today's keys, which compute the same.

    Version 0.3 wrote `model.attention` into every resolved recipe, as softmax or linear.
    """
    model = sections.get("model")
    if not isinstance(model, Mapping) or model.get(FORMER_KEY) not in ("softmax", "linear"):
        return sections
    kept = {word: value for word, value in model.items() if word != FORMER_KEY}
    if had_linear_attention(sections):
        types = dict(list_children(kept.get("layer_types") or {"linear": {}}))
        kept["layer_types"] = {
            # all other keys that a type could have were null
            name: {"mixer": {"name": "linear"}}
            | {word: value for word, value in list_children(changes) if word == "encoding"}
            for name, changes in types.items()
        }
        kept["layer_pattern"] = kept.get("layer_pattern") or ["linear"]
    return {**sections, "model": kept}


def _build_recipe(
    tree: Tree,
    edits: Sequence[Edit],
    issues: list[ConfigIssue],
    name: str,
    fragment: bool = False,
    file: str = "",
) -> Recipe:
    """Return the recipe of a tree that was read from `file` and what that extends."""
    given_tree = tree
    for edit in edits:
        with collect_issues(issues):
            tree = apply_edit(tree, edit)
    if fragment:
        issues.extend(_find_absent_sections(tree))
    reported = _list_reported_keys(issues)
    # interpolations come before types, since a reference may stand for a value of any type
    tree = _resolve(tree, issues, reported)

    outer = [word for word, value in tree.data.items() if _holds_sections(word, value)]
    for word in outer:
        hint = "move the sections below it to the left, so that none is above them"
        issues.append(ConfigIssue(tree.locate(word), word, "holds the sections", hint))
    if outer or any(_means_extends(word) for word in tree.data if word not in SECTIONS):
        # sections are missing because they are elsewhere
        reported |= {""}
    tree = replace(tree, data={word: tree.data[word] for word in tree.data if word not in outer})
    validator = Validator(tree.locations, reported, elsewhere=partial(_list_options, tree))
    typed = validator.validate_fields(SECTIONS, tree.data, "", OTHERS)
    typed = _choose_batch(typed)
    validator.issues.extend(_find_batch_problems(tree, typed.get("data")))
    locations = {**validator.locations, "": tree.locate("")}
    trainer, evaluate, data = typed.get("trainer"), typed.get("evaluate"), typed.get("data")
    sections_at_fault = {key.partition(".")[0] for key in validator.reported}
    model, has_fault = typed.get("model"), any(_is_of_model(entry) for entry in validator.issues)
    if isinstance(model, Choice) and not has_fault and sections_at_fault.isdisjoint({"", "model"}):
        validator.issues.extend(_find_unused_options(tree, model, file))
    # options that do not fit together are reported only once each of them is right by itself
    if isinstance(trainer, TrainerOptions) and sections_at_fault.isdisjoint({"", "trainer"}):
        limits = {
            locate(tree.locations, f"trainer.{limit}") for limit in ("max_epochs", "max_steps")
        }
        for key, *issue in trainer.find_problems("trainer"):
            # a limit that the caller has taken away is missing through the caller
            is_given = key == "trainer" and ARGUMENT in limits
            origin = ARGUMENT if is_given else locate(locations, key)
            validator.issues.append(ConfigIssue(origin, key, *issue))
    variants = dict(list_children(tree.data.get("evaluate"))).get("data_variants")
    if variants is not None and isinstance(data, Choice):
        typed_variants = validate_variants(validator, data, variants, "evaluate.data_variants")
        if isinstance(evaluate, EvaluateOptions):
            typed["evaluate"] = replace(evaluate, data_variants=typed_variants)

    # options that a new model lacks would hide that it does not fit the data
    if has_fault and (misfits := [*_find_other_kind(given_tree, tree)]):
        validator.issues[:] = misfits + [
            entry for entry in validator.issues if not _is_of_model(entry)
        ]
    if issues or validator.issues:
        # the same issue may be found before and after interpolation
        raise RecipeError(*dict.fromkeys([*issues, *validator.issues]))
    return Recipe(**typed, name=name, locations=MappingProxyType(locations))


def _is_of_model(issue: ConfigIssue) -> bool:
    return issue.key == "model" or issue.key.startswith("model.")


def _choose_batch(typed: dict[str, Any]) -> dict[str, Any]:
    """Drop the default of the batch of a process where the data have one of all processes."""
    data = typed.get("data")
    if not isinstance(data, Choice) or "global_batch_size" not in data.options:
        return typed
    remaining = {word: value for word, value in data.options.items() if word != "batch_size"}
    return {**typed, "data": Choice(data.name, MappingProxyType(remaining))}


def _find_batch_problems(tree: Tree, data: Any) -> Iterator[ConfigIssue]:
    """Yield what is wrong with a batch of all processes, whatever the processes."""
    section = tree.data.get("data")
    stated = section if isinstance(section, Mapping) else {}
    key, process_key = "data.global_batch_size", "data.batch_size"
    if stated.get("global_batch_size") is None:
        return
    if all(stated.get(word) is not None for word in BATCHES):
        where = tree.locate(process_key)
        place = "" if where == tree.locate(key) else f", at {where}"
        message = f"{process_key} is given too{place}"
        yield ConfigIssue(tree.locate(key), key, message, "leave one of them out")
    elif isinstance(data, Choice) and "batch_size" not in read_options("data", data.name):
        message = f"data {data.name} has no batch_size"
        yield ConfigIssue(tree.locate(key), key, message, "leave it out")


def _find_other_kind(before: Tree, tree: Tree) -> Iterator[ConfigIssue]:
    """Yield the issue of a new model that reads other samples than the one that fitted the data."""
    models, data = (
        [_find_name(side.data.get(section)) for side in (before, tree)]
        for section in ("model", "data")
    )
    if models[0] == models[1] or data[0] != data[1] or not {*models} <= {*names("models")}:
        return
    if data[1] not in names("data"):
        return
    former, chosen = (_list_kinds(find("models", name).__init__, "spec") for name in models)
    spec = getattr(find("data", data[1]), "spec", None)
    yielded = _list_kinds(spec.fget, "return") if isinstance(spec, property) else former
    # a class that declares `object` may read anything, so nothing is wrong for certain
    if object in former | chosen | yielded or not chosen.isdisjoint(former | yielded):
        return
    noun, other_noun = (
        join_words(sorted(kind.noun for kind in kinds), "or") for kinds in (chosen, former)
    )
    message = f"{models[1]} reads {noun}, and {data[1]} yields {other_noun}"
    reading = {name: _list_kinds(find("models", name).__init__, "spec") for name in names("models")}
    fitting = [name for name, kinds in reading.items() if not kinds.isdisjoint(former)]
    hint = f"choose {join_words(fitting, 'or')}, or data of {noun} too"
    yield ConfigIssue(tree.locate("model"), "model", message, hint)


def _list_kinds(function: Any, name: str) -> set[Any]:
    """Return the kinds of samples that a function declares for `name`; `object` stands for all."""
    kind = get_type_hints(function).get(name, object)
    return {*(get_args(kind) or (kind,))}


def _find_name(section: Any) -> str:
    """Return the name of the member that a section of a tree chooses, in its long or short form."""
    return str(section.get("name") if isinstance(section, Mapping) else section)


def _find_unused_options(tree: Tree, model: Choice, file: str) -> Iterator[ConfigIssue]:
    """Yield options of the model that were given last, but that each type of layers replaces.

    Args:
        tree: The tree of the recipe.
        model: The validated model.
        file: The file of the recipe, which changes those that it extends, and overrides both.
    """
    types = model.options.get("layer_types")
    if not types:
        return

    def find_newest(key: str) -> tuple[int, str]:
        """Return how old the newest part of a key is, and its location."""
        above, ages = join(key, ""), []
        for name, location in tree.locations.items():
            if name == key or name.startswith(above):
                source = location.rpartition(":")[0] or location
                ages.append(((ARGUMENT, file, source).index(source), location))
        return min(ages, default=(2, ""))

    # A mixer takes the place of attention, to which these options belong; some use encodings.
    for word in sorted({word for changes in types.values() for word in changes} - {"mixer"}):
        readers = [
            name
            for name, changes in types.items()
            if "mixer" not in changes
            or (word == "encoding" and find("mixers", changes["mixer"].name).uses_encodings)
        ]
        if not readers or any(word not in types[name] for name in readers):
            continue
        key = f"model.{word}"
        type_keys = [f"model.layer_types.{name}.{word}" for name in readers]
        is_of_input = word == "encoding" and any(
            find("encodings", encoding.name).adds_to_input for encoding in model.options[word]
        )
        age, location = find_newest(key)
        if is_of_input or age >= min(find_newest(type_key)[0] for type_key in type_keys):
            continue
        message = f"no layer has it, since each type ({', '.join(types)}) has its own {word}"
        if len(readers) < len(types):
            message += " or a mixer"
        change = Setting(type_keys[0], tree.data["model"][word])
        hint = Message("write ", change, ", or remove the key ", Setting(type_keys[0]))
        yield ConfigIssue(location, key, message, hint)


def _holds_sections(word: str, value: Any) -> bool:
    """Return whether an unknown key has the sections of a recipe below it."""
    required = {"model", "data", "task", "optim", "trainer"}
    return word not in SECTIONS and isinstance(value, Mapping) and len(required & {*value}) > 1


def _means_extends(word: str) -> bool:
    return find_meant(word, [*SECTIONS, *OTHERS])[:1] == ["extends"]


def _list_options(tree: Tree) -> Iterator[str]:
    """Yield the keys within sections, one of which a key without its section may mean."""
    yield from ("seed", "init_from")
    for section, option in SECTIONS.items():
        mark = get_args(option.annotation)[1:]
        if dataclasses.is_dataclass(option.annotation):
            keys: Iterable[str] = fields(option.annotation)  # type: ignore[arg-type]
        elif mark and isinstance(mark[0], Choices):
            chosen = tree.data.get(section)
            keys = _list_own_options(mark[0].kind, chosen)
            encodings = chosen.get("encoding") if isinstance(chosen, Mapping) else None
            entries = encodings if isinstance(encodings, list) else [encodings]
            for number, entry in enumerate(entries):
                above = join(join(section, "encoding"), number)
                yield from (join(above, key) for key in _list_own_options("encodings", entry))
        else:
            continue
        yield from (join(section, key) for key in keys)


def list_keys() -> list[str]:
    """Return the sections and the keys within them, of every member that a recipe may name."""
    keys = [*SECTIONS]
    for section, option in SECTIONS.items():
        mark = get_args(option.annotation)[1:]
        if dataclasses.is_dataclass(option.annotation):
            keys += [join(section, key) for key in fields(option.annotation)]  # type: ignore[arg-type]
        elif mark and isinstance(mark[0], Choices):
            kind = mark[0].kind
            for name in names(kind):
                keys += [join(section, key) for key in read_option_names(kind, name)]
    return [*dict.fromkeys(keys)]


def _list_own_options(kind: str, chosen: Any) -> tuple[str, ...]:
    """Return the options of a member that a recipe names; none if there is no such member."""
    name = chosen.get("name") if isinstance(chosen, Mapping) else chosen
    return tuple(read_options(kind, str(name))) if name in names(kind) else ()


def _list_reported_keys(issues: list[ConfigIssue]) -> frozenset[str]:
    """Return the keys that have an issue; "" if any key may have one, as a file was not read."""
    keys = {issue.key for issue in issues if issue.key or issue.origin != ARGUMENT}
    return frozenset("" if key.partition(".")[0] == "extends" else key for key in keys)


def _find_absent_sections(tree: Tree) -> Iterator[ConfigIssue]:
    absent = [
        word for word, option in SECTIONS.items() if option.is_required and word not in tree.data
    ]
    if absent:
        message = f"a fragment, which cannot be run alone: it has no {', '.join(absent)}"
        yield ConfigIssue(tree.locate(""), "", message, "name it in the `extends` of a recipe")


def _resolve(tree: Tree, issues: list[ConfigIssue], reported: frozenset[str]) -> Tree:
    texts = [value for _, value in walk(tree.data) if isinstance(value, str)]
    if not any(map(is_interpolation, texts)):
        return tree
    typed = Validator(tree.locations, reported).validate_fields(SECTIONS, tree.data, "")
    typed = _choose_batch(typed)
    return resolve_interpolations(tree, to_plain(typed), issues, partial="" in reported)


@dataclass(frozen=True)
class Side:
    """A value of one of two recipes and where it was given; neither if the key is absent."""

    value: Any
    location: str | None

    def __str__(self) -> str:
        if self.location is None:
            return "nothing"
        return self.value if isinstance(self.value, str) else format_value(self.value)


def diff_recipes(one: Recipe, other: Recipe) -> Iterator[tuple[str, Side, Side]]:
    """Yield each key whose value differs, in the order of sections, with both sides."""
    left, right = dict(_walk_values(one.plain())), dict(_walk_values(other.plain()))
    order = {key: number for number, key in enumerate(one.plain())}
    for key in sorted({**left, **right}, key=lambda key: order[key.partition(".")[0]]):
        if key not in left or key not in right or left[key] != right[key]:
            yield key, _get_side(one, left, key), _get_side(other, right, key)


def format_sides(one: Side, other: Side) -> list[str]:
    """Write both values shortened, or whole if they look equal when shortened."""
    short = [str(one), str(other)]
    return short if short[0] != short[1] else [repr(one.value), repr(other.value)]


def _walk_values(plain: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what has no keys below it; a list of scalars is one value."""
    children = list(list_children(plain))
    is_nested = isinstance(plain, dict) or any(
        isinstance(child, dict | list) for _, child in children
    )
    if not is_nested or not children:
        yield key, plain
        return
    for part, below in children:
        yield from _walk_values(below, join(key, part))


def _get_side(recipe: Recipe, values: dict[str, Any], key: str) -> Side:
    if key not in values:
        return Side(None, None)
    inside = [
        located for located in recipe.locations if located == key or located.startswith(f"{key}.")
    ]
    if inside:
        return Side(values[key], recipe.locations[inside[0]])
    if key.rpartition(".")[2] == "name":  # it may be written in short, as the entry or the list
        above = [
            ancestor
            for ancestor in list_ancestors(key)
            if ancestor in recipe.locations and ancestor
        ]
        return Side(values[key], recipe.locations[above[0]] if above else DEFAULT)
    return Side(values[key], DEFAULT)
