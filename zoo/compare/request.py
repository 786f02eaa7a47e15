"""The command line of `zoo compare`: its options, its engine, what varies, and the recipes that this makes."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

from zoo import config, registry
from zoo.compare.executors.base import Executor
from zoo.compare.grid import ENCODINGS, Combination, VariedKey, parse_varied_keys
from zoo.compare.grid import split_grid_words as by_axes
from zoo.compare.planner import CompareRequest, Measure, resolve_recipes
from zoo.config import Recipe
from zoo.config.command_line import parse_options, split_words
from zoo.config.schema import Seed
from zoo.config.tree import COMMAND_LINE, collect_issues
from zoo.errors import ConfigIssue, OptionError, RecipeError
from zoo.registry import Between, Count


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Options of `zoo compare`, whatever the engine."""

    seeds: Annotated[int, Between(1, 1000)] | tuple[Seed, ...] = (
        3  # so many from that of the recipe on, or which ones
    )
    to: str | None = None  # the folder; None: comparisons/<recipe>-<hash>
    jobs: Count | Literal["auto"] = "auto"  # cells at the same time
    engine: str = "local"
    measure: Measure | None = (
        None  # that the answer is given in; None: loss where every token is asked, else accuracy
    )


def parse_request(
    name: str, words: Sequence[str], plugins: Sequence[str]
) -> tuple[CompareOptions, Executor, CompareRequest, dict[Combination, Recipe]]:
    """What the command line says, and the recipes that it makes. Raises RecipeError with all that is wrong with either."""
    faults: list[ConfigIssue] = []
    told, rest = by_axes(words)
    chosen = next(
        (word.partition("=")[2] for word in rest if word.startswith("engine=")),
        CompareOptions.engine,
    )
    cls: Any = None
    with collect_issues(faults):
        cls = _engine(chosen)
    classes = (CompareOptions, *([cls] if cls else []))
    overrides = [
        word for word in rest if "." in word.partition("=")[0]
    ]  # at least, where options are wrong
    options, engine = CompareOptions(), cast(Executor, None)
    with collect_issues(faults):
        own, overrides = split_words(rest, classes, (ENCODINGS,))
        common, *mine = parse_options(own, classes)
        options, engine = CompareOptions(**common), _made(cls, *mine)
    keys: list[VariedKey] = []
    with collect_issues(faults):
        keys = parse_varied_keys(told, overrides)
    flags = [word for plugin in plugins for word in ("--plugin", plugin)]
    command = shlex.join(["zoo", "compare", name, *words, *flags])
    asked = CompareRequest(
        recipe=name,
        overrides=overrides,
        keys=keys,
        seeds=options.seeds,
        measure=options.measure,
        command=command,
    )
    found: dict[Combination, Recipe] = {}
    with collect_issues(faults):
        if keys:
            found = resolve_recipes(asked, is_local=engine is None or engine.is_local)
        else:
            config.load(name, overrides)
    if faults:
        raise RecipeError(*dict.fromkeys(faults))
    return options, engine, asked, found


def _made(cls: Any, options: Mapping[str, Any] | None = None) -> Any:
    """The engine; nothing where there is no such engine, which is told already."""
    try:
        return cls and cls(**(options or {}))
    except OptionError as error:
        raise RecipeError(ConfigIssue(COMMAND_LINE, error.key, str(error))) from None


def _engine(name: str) -> Any:
    known = registry.names("executors")
    if name not in known:
        raise RecipeError(
            ConfigIssue(
                COMMAND_LINE,
                "engine",
                f"there is no engine {name!r}",
                registry.nearest(name, known),
            )
        )
    return registry.find("executors", name)
