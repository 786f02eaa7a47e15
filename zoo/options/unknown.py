"""Explain a key that is not known where it stands: what it may mean, and where it belongs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

from zoo.options.plain import format_value, join
from zoo.options.signature import Option, fields, read_option_names
from zoo.registry import KINDS, RECIPE_SUFFIX, list_folders, names
from zoo.suggestions import (
    ALTERNATIVES,
    SYNONYM,
    TYPO,
    find_meant,
    join_words,
    list_known,
    list_words,
    nearest,
    offer,
)

PAIR = re.compile(r"([A-Za-z_]\w*)\s*[:=]\s*(\S+)")
"""A key with its value, written in a way that YAML reads as one text."""


LAYERS_OF_OTHERS = (
    "the layers of such a model are its own; in Python, zoo.equip(model, encoding, layers=[0, 2]) "
    "gives an encoding to some of them"
)
"""The remedy for types of layers of a model that zoo does not build."""
LINEAR_ATTENTION = (
    "layers have softmax attention unless their type has a mixer, and since zoo 0.4 linear "
    "attention is one: write layer_types: {linear: {mixer: linear}} and layer_pattern: [linear]"
)
"""The remedy for the option by which version 0.3 chose linear attention."""
NO_ROTATION = "no rotation, which alone can turn values and outputs back; choose rope"
REFUSED_OPTIONS: Mapping[tuple[str, str, str], str] = MappingProxyType(
    {
        ("models", "timm", "layer_types"): LAYERS_OF_OTHERS,
        ("models", "timm", "layer_pattern"): LAYERS_OF_OTHERS,
        ("models", "transformers", "layer_types"): LAYERS_OF_OTHERS,
        ("models", "transformers", "layer_pattern"): LAYERS_OF_OTHERS,
        ("models", "decoder", "attention"): LINEAR_ATTENTION,
        ("models", "encoder", "attention"): LINEAR_ATTENTION,
        ("models", "vit", "attention"): LINEAR_ATTENTION,
        ("models", "point_encoder", "attention"): LINEAR_ATTENTION,
        ("encodings", "fope", "turn_values"): f"its sums of waves are {NO_ROTATION}",
        ("encodings", "path", "turn_values"): f"products of later tokens' maps are {NO_ROTATION}",
        ("encodings", "pope", "turn_values"): f"channels with lengths and phases are {NO_ROTATION}",
        ("encodings", "tape", "turn_values"): (
            "it averages vectors of positions along with the values, which would turn back with "
            "them; choose rope"
        ),
        ("encodings", "xpos", "turn_values"): (
            f"channels that grow and decay by position are {NO_ROTATION}"
        ),
    }
)
"""Remedies for options that members of a kind have and this one cannot have."""


class OptionOwner(NamedTuple):
    """A registered member whose options are read, such as the encoding `rope`."""

    kind: str
    name: str


class Explanation(NamedTuple):
    """A remedy for an unknown key, and the keys beside it that it is likely to mean."""

    remedy: str
    meant: tuple[str, ...] = ()


def explain_key(
    word: str,
    schema: Mapping[str, Option],
    key: str,
    *,
    others: Sequence[str] = (),
    member: OptionOwner | None = None,
    elsewhere: Callable[[], Iterable[str]] | None = None,
) -> Explanation:
    """Explain an unknown key.

    The order is: the same key but for a slip or for another name, one below a neighbour, the same
    key in another section, an option of another member, and what looks alike.

    Args:
        word: The last part of the key.
        schema: The options that are known beside it.
        key: The key above.
        others: Further words that are read beside it.
        member: Whose options these are.
        elsewhere: Returns the full keys of the recipe.
    """
    dotted = re.sub(r"[/:]", ".", word)
    if dotted != word and elsewhere and dotted in elsewhere():
        return Explanation(f"did you mean {dotted}?")
    if word.isdecimal():
        return Explanation("a fraction takes a point, as 0.5, and a number alone is no key")
    beside = [candidate for candidate in (*schema, *others) if candidate != word]
    if meant := find_meant(word, beside, TYPO):
        return Explanation(offer(word, meant, key), tuple(meant))
    if key and elsewhere and word in elsewhere():
        # a key of the recipe that belongs to no section
        return Explanation(f"did you mean {word}, which is in no section?")
    away = (
        [candidate for candidate in elsewhere() if candidate != join(key, word)]
        if elsewhere
        else []
    )
    # at the top, the keys below neighbours are those of the whole recipe
    nested = [] if away and not key else [*_list_nested(schema)]
    if meant := find_meant(word, nested, SYNONYM):
        return Explanation(offer(word, meant, key))
    if member and (hint := REFUSED_OPTIONS.get((*member, word))):
        return Explanation(hint)
    # within a section an option of another member is nearer than one of another section
    owners = list_owners(member, word) if member else {}
    is_section = bool(key) and "." not in key
    meant = find_meant(word, away, SYNONYM)
    is_same = any(name.rpartition(".")[2] == word for name in meant)
    if meant and (not owners or (is_section and (is_same or word not in owners.values()))):
        return Explanation(offer(word, meant))
    if member and owners:
        hint = f"{_say_option(word, owners)} of {join_words(owners, most=4)}"
        return Explanation(f"{hint}; {_list_options(member, schema)}")
    if meant := find_meant(word, beside):
        return Explanation(offer(word, meant, key), tuple(meant))
    for candidates, parent in ((nested, key), (away, "")):
        if meant := find_meant(word, candidates, TYPO):
            return Explanation(offer(word, meant, parent))
    if member:
        return Explanation(_list_options(member, schema))
    return Explanation(list_known(beside))


def _say_option(word: str, owners: Mapping[str, str]) -> str:
    option = next(iter(owners.values()))
    return "it is an option" if option == word else f"{option} is an option"


def _list_options(member: OptionOwner, schema: Collection[str]) -> str:
    return f"{member.name} has {list_words(schema) if schema else 'no options'}"


def _list_nested(schema: Mapping[str, Option]) -> Iterator[str]:
    """Yield the keys one level below the options that are mappings of options."""
    for word, option in schema.items():
        for part in (option.annotation, *get_args(option.annotation)):
            if dataclasses.is_dataclass(part) and isinstance(part, type):
                yield from (join(word, below) for below in fields(part))


def list_owners(member: OptionOwner, word: str) -> dict[str, str]:
    """Return {name: option} of the other members of a kind that have an option of this meaning."""
    by_member = {
        name: read_option_names(member.kind, name)
        for name in names(member.kind)
        if name != member.name
    }
    option_names = dict.fromkeys(
        option for member_options in by_member.values() for option in member_options
    )
    meant = [word] if word in option_names else find_meant(word, option_names, TYPO)[:1]
    return {
        name: option
        for option in meant
        for name, member_options in by_member.items()
        if option in member_options
    }


def _list_fragments() -> Iterator[str]:
    """Yield the fragments of zoo and of plug-ins: data/digits."""
    for folder in list_folders("configs"):
        for path in sorted(folder.rglob(f"*{RECIPE_SUFFIX}")):
            yield path.relative_to(folder).with_suffix("").as_posix()


def write_name_first(name: str, options: Mapping[str, Any] | None) -> str:
    """Return how `{rope: {base: 3}}` is written."""
    pairs = [f"{key}: {format_value(value)}" for key, value in (options or {}).items()]
    return f"write {{{', '.join([f'name: {name}', *pairs])}}}"


def explain_nameless(kind: str, given: Mapping[str, Any]) -> str:
    """Explain options of a member without its name; empty where nothing is likely."""
    for word, value in given.items():
        if isinstance(value, str) and (meant := find_meant(word, ["name"], TYPO)):
            return offer(word, meant)
        if len(given) == 1 and word in names(kind) and isinstance(value, Mapping | None):
            return write_name_first(word, value)
    return ""


def _rewrite_names(word: str, members: Collection[str]) -> str:
    """Return how zoo writes several names, `rope+alibi`, or one with options, `rope(base=3)`."""
    several = [part.strip() for part in re.split(r"[+,;&|]", word)]
    if len(several) > 1 and set(several) <= {*members}:
        return f"[{','.join(several)}]"
    call = re.fullmatch(r"(\w+)\((.*)\)", word)
    if call and call[1] in members:
        options = re.sub(r"\s*=\s*", ": ", call[2])
        return f"{{name: {call[1]}, {options}}}" if options else call[1]
    return ""


def explain_name(kind: str, word: str) -> str:
    """Explain a name that no member of a kind has."""
    members = names(kind)
    if pair := PAIR.fullmatch(word):
        return f"write {pair[1]}: {pair[2]} with a space after the colon, below the section"
    if written := _rewrite_names(word, members):
        return f"write {written}"
    if family := [name for name in members if name.startswith(f"{word}_")]:
        return offer(word, family[:ALTERNATIVES])
    if meant := find_meant(word, members, TYPO):
        return offer(word, meant)
    for other_kind, about in KINDS.items():
        if other_kind != kind and about.in_recipes and word in names(other_kind):
            return f"{word} is one of {other_kind}; {list_known(members)}"
    if word.endswith(".txt") and kind == "data":
        return f"write {{name: text, files: [{word}]}}"
    for fragment in _list_fragments():
        section, _, stem = fragment.partition("/")
        # fewer letters begin too many names
        is_near = len(word) > 3 and stem.startswith(word.lower())
        if kind.startswith(section) and (word in (fragment, stem) or is_near):
            return f"{fragment} is a fragment, which a recipe names in `extends`"
    return nearest(word, members)
