"""Train a recipe with several encodings, or values of other keys, and rank them.

`zoo.compare(...)` calls this module and does what `zoo compare` does: cells run in processes of
their own, several at the same time. An interrupt has them save their state and returns what is
there; the same call continues.

Args:
    recipe: A YAML file or the name of a registered recipe; None with `rebuild`.
    overrides: Changes of the recipe: {key: value}, or a list of `key=value` and `~key`.
    encodings: The encodings that vary: names, mappings with options, or lists of these.
    vary: Other keys that vary: {key: [value, ...]}.
    verbose: Print progress to standard error.
    options: Those of `zoo compare`: seeds, budget, tuning_seed, sampler, halving, hypotheses,
        measure, to, jobs, engine, rebuild, and those of the engine.

Returns:
    The comparison as far as it has come, as a `zoo.ComparisonResult`.

Raises:
    RecipeError: Something is wrong with an argument or with any cell; nothing was started.
    DataError: Data is missing, or `rebuild` names no comparison.
    ZooError: Some cells failed; the others, and the table, are in the output folder.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zoo.compare.outcome import ComparisonResult
    from zoo.config.command_line import Overrides


class CallableModule(ModuleType):
    """This package, which is called as the function `zoo.compare`.

    Importing any module of the package sets the attribute `compare` of `zoo`; a function of that
    name would be lost then.
    """

    def __call__(
        self,
        recipe: str | None = None,
        overrides: Overrides = (),
        *,
        encodings: Sequence[Any] | None = None,
        vary: Mapping[str, Sequence[Any]] | None = None,
        verbose: bool = True,
        **options: Any,
    ) -> ComparisonResult:
        from zoo.compare.outcome import compare

        return compare(recipe, overrides, encodings, vary, verbose, options)


sys.modules[__name__].__class__ = CallableModule
