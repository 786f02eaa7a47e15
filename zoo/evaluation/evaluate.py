"""`zoo eval`: measure a checkpoint, as it was trained, at other sizes, by other rules and on variants of its data."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from signal import SIGINT, SIGTERM, Signals
from typing import Any

import lightning as L
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import Tensor

from zoo.bench.timing import is_out_of_memory
from zoo.config import Recipe
from zoo.config.schema import format_size
from zoo.data.base import DataModule
from zoo.data.spec import ImageSpec, Samples, TextClassificationSpec, TextSpec
from zoo.errors import AlreadyReported, OptionError, RecipeError, Stopped, ZooError
from zoo.run import atomic_io, checkpoint, conditions, extrapolation, run_dir
from zoo.run.build import build_data, build_trainer
from zoo.run.callbacks.progress import Tested
from zoo.run.distributed import Processes
from zoo.run.load import restore
from zoo.run.spawn import together
from zoo.tasks.base import Task


@contextmanager
def stoppable(trainer: L.Trainer) -> Iterator[None]:
    """Raises Stopped where SIGINT or SIGTERM came in the block, AlreadyReported in other processes than the first."""
    try:
        yield
    except SIGTERMException:
        raise _stopped(trainer, SIGTERM) from None
    except SystemExit as error:
        if not isinstance(error.__context__, KeyboardInterrupt):
            raise
        raise _stopped(trainer, SIGINT) from None
    if trainer.received_sigterm:  # after the last batch, where nothing asks any more
        raise _stopped(trainer, SIGTERM)


def _stopped(trainer: L.Trainer, received: Signals) -> ZooError:
    told = f"stopped by {received.name} while testing; nothing was written"
    return Stopped(received, told) if trainer.is_global_zero else AlreadyReported(128 + received)


BY_PLACE = ("positions", "accuracies", "target_counts")


def tested(trainer: L.Trainer, task: Task, data: DataModule) -> dict[str, Any]:
    """count, metrics, and of a text how it was cut and, where a task tells them, loss, accuracy and number of tokens by place.

    Raises OptionError where the data cannot be read, and Stopped where a signal comes.
    """
    adopt(task, data)
    if isinstance(data.samples, TextSpec):
        task.longest_test_window = data.samples.length
    with stoppable(trainer):
        (metrics,) = trainer.test(task, datamodule=data, verbose=False)
    told = {
        "count": data.count("test"),
        "metrics": {name: float(value) for name, value in metrics.items()},
    }
    told |= {"windows": data.windows} if data.windows else {}
    if not isinstance(data.samples, TextSpec):
        return told
    length = data.samples.length  # a task counts to the length of training at least
    return told | {key: found[:length] for key in BY_PLACE if (found := getattr(task, key, None))}


def adopt(task: Task, data: DataModule) -> None:
    """Raises OptionError where data cannot be read as what the model was trained on."""
    data.adopt(task.samples)
    known, found = task.samples, data.samples
    if isinstance(known, ImageSpec):
        _refuse_others(known, found, "channels", "classes")
        return
    vocabulary = None if isinstance(found, ImageSpec) else found.vocabulary
    if vocabulary is None or vocabulary.plain() != known.vocabulary.plain():
        told = f"{type(data).__name__.lower()} does not yield the vocabulary that the model was trained with"
        raise OptionError("name", f"{told}; measure on text")
    _refuse_others(
        known, found, *(("classes",) if isinstance(known, TextClassificationSpec) else ())
    )


def _refuse_others(known: Samples, found: Samples, *keys: str) -> None:
    """Raises OptionError where samples are not such as the model was trained on; their size may be another."""
    if type(found) is not type(known):
        raise OptionError("name", f"the model reads {known.noun}")
    for key in keys:
        if getattr(found, key) != getattr(known, key):
            raise OptionError(
                key,
                f"{getattr(found, key)} {key}, the model was trained with {getattr(known, key)}",
            )


log = logging.getLogger("zoo")

Found = dict[str, Any]
Swept = dict[str, dict[str, Found]]


def swept(
    recipe: Recipe,
    trainer: L.Trainer,
    task: Task,
    weights: Mapping[str, Tensor],
    keep: Callable[[Swept], object],
) -> Swept:
    """What `evaluate` asks for: resolutions, lengths, variants and rules, {name: metrics} of each, or why there are none.

    `weights` are those of the task. What was found so far is given to `keep` after each measurement.
    """
    found: Swept = {}
    for kind, sizes in (("resolutions", conditions.resolutions), ("lengths", conditions.lengths)):
        for name, sized in sizes(recipe, task.samples).items():
            found.setdefault(kind, {})[name] = _sweeps_measured(
                recipe, trainer, task, sized.options
            )
            keep(found)
    for name, changes in (recipe.evaluate.data_variants or {}).items():
        found.setdefault("variants", {})[name] = _sweeps_measured(recipe, trainer, task, changes)
        keep(found)
    plain = found.get("resolutions", {}) | found.get("lengths", {})
    beyond = {
        name: sized
        for name, sized in conditions.sizes(recipe, task.samples).items()
        if sized.beyond
    }
    for rule in dict.fromkeys(recipe.evaluate.extrapolation or ()):
        found.setdefault("rules", {})[rule] = by_rule = {}
        for name, sized in beyond.items():
            known = plain[name] if rule == extrapolation.NONE else None
            by_rule[name] = known or _ruled(recipe, trainer, task, weights, rule, name, sized)
            keep(found)
    return found


def _ruled(
    recipe: Recipe,
    trainer: L.Trainer,
    task: Task,
    weights: Mapping[str, Tensor],
    rule: str,
    name: str,
    sized: conditions.Sized,
) -> Found:
    """Metrics by one rule at one size."""
    log.info("%s: by the rule %s at %s", recipe.name, rule, name)
    try:
        other = extrapolation.extended(recipe, task, weights, rule, sized.factors)
    except OptionError as error:
        return {"refused": str(error)}
    return _sweeps_measured(recipe, trainer, other, sized.options)


def _sweeps_measured(
    recipe: Recipe, trainer: L.Trainer, task: Task, options: Mapping[str, Any]
) -> Found:
    """Metrics with options of the data changed; where the model cannot follow, or the machine, why."""
    try:
        measured = tested(trainer, task, build_data(recipe, **options))
    except OptionError as error:
        return {"refused": str(error)}
    except (RuntimeError, MemoryError) as error:
        if trainer.world_size > 1 or not is_out_of_memory(
            error
        ):  # other processes would wait for this one
            raise
        return {"refused": "out of memory"}
    beside = {key: value for key, value in measured.items() if key not in ("count", "metrics")}
    return measured["metrics"] | beside


KEPT = "evaluation.json"  # beside the figure of an evaluation of more than the data as they are, what `--json` prints
UNLESS_SAID = (
    "trainer.accelerator=auto",
    "trainer.devices=1",
    "trainer.num_nodes=1",
    "trainer.strategy=auto",
)


def evaluate(
    place: str, overrides: Sequence[str], words: Sequence[str] = ()
) -> dict[str, Any] | None:
    """Test a checkpoint; returns what `--json` prints, in the process that speaks to the user.

    The trainer of training is not taken over unless overridden. `words` as in `fit`.
    """
    path = checkpoint.locate(place)
    recipe, task = restore(path, [*UNLESS_SAID, *overrides])
    processes = together(recipe, words or ["eval", place, *overrides])
    result = None if processes is None else _measured(path, recipe, task, processes)
    return result if processes and processes.first else None


def _measured(path: Path, recipe: Recipe, task: Task, processes: Processes) -> dict[str, Any]:
    trainer = build_trainer(recipe, logger=False, callbacks=[Tested()])
    weights = (
        task.state_dict() if recipe.evaluate.extrapolation else {}
    )  # now: a strategy may keep them in shards later
    data = build_data(recipe)
    result: dict[str, Any] = {"recipe": recipe.name, "checkpoint": str(path), "data": data.title}
    try:
        result |= tested(trainer, task, data)
    except OptionError as error:
        raise RecipeError(
            recipe.make_issue(f"data.{error.key}" if error.key else "data", str(error))
        ) from None
    known = {"size": _size(data.samples), "trained": _size(task.samples)} | (
        {"shown": data.shown} if data.shown else {}
    )
    run, parts = run_dir.holder(path), list[Swept]()

    def keep(found: Swept) -> None:
        parts.append(found)
        if processes.first:
            write({**result, **found, **known, "partial": True}, run / KEPT)

    try:
        found = swept(recipe, trainer, task, weights, keep)
    except Stopped as stopped:
        if not parts:
            raise
        told = f"stopped by {Signals(stopped.code - 128).name} while testing; what was measured before stands in {run / KEPT}"
        raise Stopped(stopped.code - 128, told) from None
    if processes.first and found:
        from zoo.evaluation.size_figure import save_figure

        result |= found | known
        write(result, run / KEPT)  # whatever becomes of the figure
        result["figure"] = str(save_figure(recipe, result, run, result["trained"]))
        write(result, run / KEPT)
    return result


def write(result: Mapping[str, Any], file: Path) -> None:
    atomic_io.write(io.BytesIO((json.dumps(result, indent=2) + "\n").encode()), file)


def _size(samples: Samples) -> int | str:
    """A number of tokens or pixels, or HxW where images are no squares."""
    if not isinstance(samples, ImageSpec):
        return samples.length
    return (
        samples.height
        if samples.height == samples.width
        else format_size((samples.height, samples.width))
    )
