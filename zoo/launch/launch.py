"""`zoo launch`: the script that starts a run on a cluster, and goes on with it however often it is started."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from zoo import registry
from zoo.config import Recipe, load
from zoo.config.command_line import parse_options, split_words
from zoo.config.tree import COMMAND_LINE
from zoo.errors import ConfigIssue, OptionError, RecipeError
from zoo.launch.job import Job, Launcher
from zoo.registry import Count
from zoo.run.load import load_recipe

log = logging.getLogger("zoo")

HERE = (
    "accelerator=cpu",
    "devices=1",
    "num_nodes=1",
    "precision=32-true",
)  # the machine where it is checked


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """Options of every engine; None for `nodes` and `devices` of the recipe's trainer, and for a run directory of its own."""

    nodes: Count | None = None
    devices: Count | None = None
    run_dir: str | None = None


def launch(
    engine: str, name: str, words: Sequence[str], plugins: Sequence[str], show: bool
) -> None:
    """Write the script, or `show` it on standard output. Raises RecipeError before anything is written."""
    made, job = prepare_job(engine, name, words, plugins)
    script = made.write_script(job)
    if show:
        print(script, end="")
        return
    path = Path(f"{job.title}.{engine}.sh")
    _write(path, script)
    log.info(
        "%d processes: %d on each of %d nodes", job.nodes * job.devices, job.devices, job.nodes
    )
    log.info("run directory: %s", job.arguments[job.arguments.index("--run-dir") + 1])
    log.info("next: %s", made.format_submission(shlex.quote(str(path)), job))


def prepare_job(
    engine: str, name: str, words: Sequence[str], plugins: Sequence[str] = ()
) -> tuple[Launcher, Job]:
    """The engine with its options, and the job that `words` make of a recipe, which is found right first."""
    if engine not in registry.names("engines"):
        remedy = registry.nearest(engine, registry.names("engines"))
        raise RecipeError(ConfigIssue(COMMAND_LINE, engine, "there is no such engine", remedy))
    cls = registry.find("engines", engine)
    told, overrides = split_words(words, (LaunchOptions, cls))
    common, own = parse_options(told, (LaunchOptions, cls))
    try:
        made = cast(Launcher, cls(**own))
    except OptionError as error:
        raise RecipeError(ConfigIssue(COMMAND_LINE, error.key, str(error))) from None
    recipe = _found_right(name, overrides, common)
    return made, _job(recipe, name, overrides, LaunchOptions(**common), plugins)


def _found_right(name: str, overrides: Sequence[str], common: dict[str, Any]) -> Recipe:
    """The recipe. What its trainer needs may not be on this machine; all else is checked."""
    for option, key in (("nodes", "trainer.num_nodes"), ("devices", "trainer.devices")):
        if common[option] is not None and any(word.startswith(f"{key}=") for word in overrides):
            raise RecipeError(
                ConfigIssue(
                    COMMAND_LINE, key, f"it is told by {option} too", "leave one of them out"
                )
            )
    recipe = load(name, overrides)
    if common["devices"] is None and "," in str(recipe.trainer.devices):
        raise RecipeError(
            recipe.make_issue(
                "trainer.devices", "which ones is for the cluster to say", "write devices=COUNT"
            )
        )
    load_recipe(name, [*overrides, *(f"trainer.{word}" for word in HERE)])
    return recipe


def _job(
    recipe: Recipe,
    name: str,
    overrides: Sequence[str],
    common: LaunchOptions,
    plugins: Sequence[str],
) -> Job:
    trainer = recipe.trainer
    devices = common.devices or (trainer.devices if isinstance(trainer.devices, int) else 1)
    nodes = common.nodes or trainer.num_nodes
    words = [name, *overrides, f"trainer.num_nodes={nodes}", f"trainer.devices={devices}"]
    words += [word for plugin in plugins for word in ("--plugin", plugin)]
    run = common.run_dir or f"runs/{recipe.name}/{recipe.hash}"
    arguments = ("fit", *words, "--run-dir", run, "--resume", "auto")
    workers = recipe.data.options.get("workers", 0)
    folder, programs = Path.cwd(), Path(sys.executable).parent
    return Job(
        recipe.name,
        arguments,
        nodes,
        devices,
        trainer.accelerator != "cpu",
        workers + 1,
        folder,
        programs,
    )


def _write(path: Path, script: str) -> None:
    """What the file held before, if it was something else, is kept beside it."""
    if path.exists() and path.read_bytes() != script.encode():
        before = path.with_name(f"{path.name}.before")
        path.replace(before)
        log.info("%s held something else, which is now in %s", path, before)
    path.write_text(script, encoding="utf-8")
    log.info("written: %s", path)
