"""Keys of a recipe that a comparison varies, and the variants that their values give."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from zoo.comparison.results import Axis
from zoo.config import Change, Edit
from zoo.config.command_line import list_chain
from zoo.config.overrides import list_edits
from zoo.config.tree import collect_issues
from zoo.errors import ARGUMENT, ConfigIssue, Message, RecipeError, Setting
from zoo.options.plain import format_label

ENCODINGS, VARY, ENCODING = "encodings", "vary", "model.encoding"
SHORT_KEYS = {
    "encoding_lr": "optim.encoding_lr",
    "scale_embeddings": "model.scale_embeddings",
    "coordinates": f"{ENCODING}.0.coordinates",
}
"""Conventions by a short name, for `vary` and `tune`."""


@dataclass(frozen=True)
class VariedKey:
    """A key that varies.

    Attributes:
        key: The full key, such as `model.encoding`.
        values: {label: value}; the label is the value as people write it, the value plain data.
    """

    key: str
    values: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Combination:
    """A value of each key that varies: a variant, or one of its trials.

    Attributes:
        name: Unique among all combinations.
        values: {key: label of its value}.
        edits: The changes of the recipe that set the values.
        trial_of: The name of the variant that it is a trial of.
    """

    name: str
    values: Mapping[str, str]
    edits: tuple[Edit, ...]
    trial_of: str | None = None


def read_varied_keys(
    encodings: Any, vary: Mapping[str, Any], overrides: Sequence[Edit] = ()
) -> list[VariedKey]:
    """Read the keys that vary: the encoding first, then the others in their order.

    Args:
        encodings: A list of encodings: names, mappings with options, or lists of these; None where
            encodings do not vary.
        vary: {key: list of values}.
        overrides: Changes of the recipe, which must not set the same keys.

    Raises:
        RecipeError: A key or a value is wrong; all issues are reported together.
    """
    issues: list[ConfigIssue] = []
    varied: dict[str, VariedKey] = {}
    requested = [(ENCODINGS, ENCODING, encodings)] if encodings is not None else []
    requested += [
        (f"{VARY}.{key}", SHORT_KEYS.get(key, key), values) for key, values in vary.items()
    ]
    for argument, key, values in requested:
        with collect_issues(issues):
            plain = read_list(argument, key, values)
            _check_key(argument, key, varied, overrides)
            varied[key] = VariedKey(key, _label_values(argument, key, plain))
    if not requested:
        hint = Message(
            "write ",
            Setting(ENCODINGS, ["rope", "alibi"]),
            " or ",
            Setting("model.depth", [4, 8], within=VARY),
        )
        issues.append(ConfigIssue(ARGUMENT, "", "nothing varies", hint))
    if issues:
        raise RecipeError(*issues)
    return [*varied.values()]


def read_list(argument: str, key: str, values: Any) -> list[Any]:
    """Return a list of values as plain data.

    Args:
        argument: What the caller passed it as, such as `encodings` or `vary.model.depth`.
        key: The key of the recipe.
        values: What was passed.

    Raises:
        RecipeError: It is no list, or an empty one.
    """
    (edit,) = list_edits({key: values})
    plain = edit.value if isinstance(edit, Change) else None
    if isinstance(plain, list) and plain:
        return plain
    if argument == ENCODINGS:
        example = Setting(ENCODINGS, ["rope", "alibi"])
    else:
        within, _, word = argument.partition(".")
        example = Setting(word, [4, 8], within=within)
    hint = Message("write ", example)
    raise RecipeError(ConfigIssue(ARGUMENT, argument, "expected a list of values", hint))


def _check_key(
    argument: str, key: str, varied: Mapping[str, VariedKey], overrides: Sequence[Edit]
) -> None:
    """Raise RecipeError for a key that something else sets too."""

    def refuse(message: str, hint: str | Message) -> RecipeError:
        return RecipeError(ConfigIssue(ARGUMENT, argument, message, hint))

    if key == "seed":
        hint = Message("write ", Setting("seeds", 3), " or ", Setting("seeds", [0, 7]))
        raise refuse("seeds do not vary like other keys", hint)
    if key in varied:
        raise refuse("the key varies twice", "write one list of all values")
    if any(is_below(edit.key, key) for edit in overrides):
        raise refuse("set both by `vary` and by an override", "remove one of them")
    for other_key in varied:
        # edits are applied in their order: an option of encodings that were listed before
        is_option = other_key == ENCODING and key.startswith(f"{ENCODING}.")
        if not is_option and (is_below(other_key, key) or is_below(key, other_key)):
            message = f"the key varies, and so does {other_key}, which overlaps it"
            raise refuse(message, "write one list of both")


def is_below(key: str, parent: str) -> bool:
    """Return whether a key is below another one, or the same."""
    return key == parent or key.startswith(f"{parent}.")


def _label_values(argument: str, key: str, values: Sequence[Any]) -> dict[str, Any]:
    by_label: dict[str, Any] = {}
    for value in values:
        if key == ENCODING:
            value = list_chain(value)
        label = format_label(value)
        if label in by_label:
            message = f"the list names {label} twice"
            raise RecipeError(ConfigIssue(ARGUMENT, argument, message, "list it once"))
        by_label[label] = value
    return by_label


def build_axes(keys: Sequence[VariedKey]) -> tuple[Axis, ...]:
    """Return the axes, titled by the last word of their keys if that tells them apart."""
    titles = [_find_title(key.key) for key in keys]
    axes = []
    for varied_key, title in zip(keys, titles, strict=True):
        title = title if titles.count(title) == 1 else varied_key.key
        axes.append(
            Axis(
                key=varied_key.key,
                title=title,
                values=tuple(varied_key.values),
                settings=tuple(varied_key.values.values()),
            )
        )
    return tuple(axes)


def _find_title(key: str) -> str:
    # the number of an entry tells nothing: encoding.0.base varies the base
    parts = [word for word in key.split(".") if not word.isdecimal()]
    return parts[-1] if parts else key


def list_combinations(axes: Iterable[Axis]) -> Iterator[Combination]:
    """Yield all combinations; the last axis changes first."""
    axes = tuple(axes)
    pairs = [zip(axis.values, axis.settings, strict=True) for axis in axes]
    for chosen in product(*pairs):
        values: dict[str, str] = {}
        edits: list[Edit] = []
        labels = []
        for axis, (label, value) in zip(axes, chosen, strict=True):
            values[axis.key] = label
            edits.append(Change(axis.key, value))
            labels.append(label if axis.key == ENCODING else f"{axis.title}={label}")
        yield Combination(" ".join(labels), values, tuple(edits))


def name_folders(names: Sequence[str]) -> list[str]:
    """Return a file name for each of these names, no two of them equal."""
    folders: list[str] = []
    for name in names:
        # names hold what users write, such as paths; folders must stay below the output folder
        word = re.sub(r"[^A-Za-z0-9._+=-]+", "-", name).strip("-.")[:80] or "variant"
        # two names may differ only in characters that were replaced
        taken = sum(folder == word or folder.startswith(f"{word}~") for folder in folders)
        folders.append(f"{word}~{taken + 1}" if taken else word)
    return folders


def find_setting(recipe: Mapping[str, Any], key: str) -> Any:
    """Return the value of a dotted key; None if the recipe has none."""
    value: Any = recipe
    for part in key.split("."):
        if isinstance(value, Mapping):
            value = value.get(part)
        elif isinstance(value, list | tuple) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value
