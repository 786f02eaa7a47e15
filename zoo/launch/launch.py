"""Describe a run for any cluster, and write the script that starts and continues it."""

from __future__ import annotations

import logging
import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, cast

from zoo import registry
from zoo.config import Recipe, load
from zoo.config.command_line import format_edits
from zoo.config.overrides import Change, Edit, Overrides, list_edits
from zoo.errors import ARGUMENT, ConfigIssue, Message, OptionError, RecipeError, Setting
from zoo.options import Choice, Count
from zoo.run.build import Experiment
from zoo.run.load import load_experiment, load_for_description
from zoo.run.requirements import describe_requirements, estimate_requirements

SECONDS_TO_SAVE = 180
"""Time that a run has to save its state before it is killed."""

PREAMBLE = """\
cd {folder} || exit 1
export PATH=${{ZOO_BIN:-{programs}}}:$PATH # where zoo and torchrun are
"""
log = logging.getLogger("zoo")

# a trainer that this machine has, for checking a recipe that will run on another one
LOCAL_TRAINER = (
    Change("trainer.accelerator", "cpu"),
    Change("trainer.devices", 1),
    Change("trainer.num_nodes", 1),
    Change("trainer.precision", "32-true"),
)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run that resumes each time it is started."""

    name: str
    arguments: tuple[str, ...]
    """The words after `zoo`."""
    run_dir: str
    nodes: int
    devices: int
    """Devices on each node: GPUs, or processes on the CPU."""
    gpus: bool
    cpus: int
    """CPUs for each process."""
    folder: Path
    """Working directory."""
    programs: Path
    """Folder of the programs zoo and torchrun."""
    needs: tuple[str, ...] = ()
    """Lines about what the training needs, for the reader of the script."""

    @property
    def title(self) -> str:
        """The name in characters that no scheduler or shell interprets."""
        return re.sub(r"[^A-Za-z0-9._-]+", "-", self.name).strip("-.") or "run"

    @property
    def preamble(self) -> str:
        """The lines of a shell script that come before the run itself."""
        folder, programs = shlex.quote(str(self.folder)), shlex.quote(str(self.programs))
        needs = "".join(f"# {line}\n" for line in self.needs)
        return needs + PREAMBLE.format(folder=folder, programs=programs)

    @property
    def command(self) -> str:
        """`arguments`, quoted for a shell."""
        return shlex.join(self.arguments)


class Launcher(Protocol):
    """Writes scripts for a kind of cluster; its keyword-only arguments are its options."""

    def write_script(self, job: Job) -> str:
        """Return the script that starts a job, and continues it when it is started again."""
        ...

    def format_submission(self, file: str, job: Job) -> str:
        """Return the command that runs the script `file`, which is quoted for a shell."""
        ...


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """Options that every launcher takes."""

    nodes: Count | None = None
    """Number of nodes; null: trainer.num_nodes of the recipe."""
    devices: Count | None = None
    """GPUs, or processes on the CPU, on each node; null: trainer.devices of the recipe."""
    run_dir: str | None = None
    """Run directory; null: runs/<recipe>/<hash>."""


@dataclass(frozen=True, kw_only=True)
class LaunchResult:
    """A script, and how to start it.

    Attributes:
        job: The run that the script starts.
        script: The text of the script.
        path: The file to write it to.
        launcher: What starts processes on the cluster.
    """

    job: Job
    script: str
    path: Path
    launcher: Launcher

    @property
    def submission(self) -> str:
        """The command that starts the script."""
        return self.launcher.format_submission(shlex.quote(str(self.path)), self.job)

    def write(self) -> None:
        """Write the script, keep an older one as NAME.before, and log how to start it."""
        _write(self.path, self.script)
        job = self.job
        log.info(
            "%d processes: %d on each of %d nodes", job.nodes * job.devices, job.devices, job.nodes
        )
        log.info("run directory: %s", job.run_dir)
        log.info("next: %s", self.submission)


def launch(
    launcher: Choice,
    recipe: str,
    options: LaunchOptions,
    overrides: Overrides = (),
    *,
    is_draft: bool = False,
) -> LaunchResult:
    """Write a script that starts a run on a cluster, as text.

    Args:
        launcher: A registered launcher, slurm or torchrun, with its options.
        recipe: A recipe file or a registered name.
        options: The size of the cluster, and the run directory.
        overrides: Changes of the recipe.
        is_draft: Whether the script may name a folder in place of data that the recipe lacks.

    Raises:
        RecipeError: The launcher, an option or the recipe is wrong.
    """
    cls = registry.find("launchers", launcher.name)
    try:
        chosen = cast(Launcher, cls(**launcher.options))
    except OptionError as error:
        raise RecipeError(ConfigIssue(ARGUMENT, error.key, error.message)) from None

    edits = list_edits(overrides)
    if is_draft:
        # stands in for data that the recipe lacks, so that the rest can be checked
        edits = [*edits, *load_for_description(recipe, [*edits, *LOCAL_TRAINER])[1]]
    checked, experiment = _check_recipe(recipe, edits, options)
    job = _build_job(checked, recipe, edits, options)
    try:
        needs = estimate_requirements(experiment, job.nodes * job.devices)
    except OptionError as error:
        raise RecipeError(checked.make_issue(f"data.{error.key}", str(error))) from None
    job = replace(job, needs=tuple(describe_requirements(needs)))
    path = Path(f"{job.title}.{launcher.name}.sh")
    return LaunchResult(job=job, script=chosen.write_script(job), path=path, launcher=chosen)


def _check_recipe(
    name: str, edits: Sequence[Edit], options: LaunchOptions
) -> tuple[Recipe, Experiment]:
    """Load a recipe and check it, except its trainer: only the cluster may have its devices."""
    for option, key in (("nodes", "trainer.num_nodes"), ("devices", "trainer.devices")):
        is_changed = any(isinstance(edit, Change) and edit.key == key for edit in edits)
        if is_changed and getattr(options, option) is not None:
            message = Message(Setting(option), " sets it too")
            raise RecipeError(ConfigIssue(ARGUMENT, key, message, "leave one of them out"))

    recipe = load(name, edits)
    if options.devices is None and "," in str(recipe.trainer.devices):
        message = Message("the cluster chooses the devices, so they cannot be named")
        hint = Message("write ", Setting("devices", "COUNT"))
        issue = recipe.make_issue("trainer.devices", "")
        raise RecipeError(replace(issue, problem=message, remedy=hint))
    checked = load_experiment(name, [*edits, *LOCAL_TRAINER])
    return recipe, Experiment(recipe, checked.spec)


def _build_job(recipe: Recipe, name: str, edits: Sequence[Edit], options: LaunchOptions) -> Job:
    trainer = recipe.trainer
    devices = options.devices or (trainer.devices if isinstance(trainer.devices, int) else 1)
    nodes = options.nodes or trainer.num_nodes
    run_dir = options.run_dir or f"runs/{recipe.name}/{recipe.hash}"

    # the workers that encode text have ended when those that load data start
    workers = max(recipe.data.options.get(key, 0) for key in ("workers", "tokenizer_workers"))
    sizes = [Change("trainer.num_nodes", nodes), Change("trainer.devices", devices)]
    # the script is a command line: here edits become words
    arguments = [name, *format_edits([*edits, *sizes])]
    for plugin in filter(None, os.environ.get(registry.PLUGINS, "").split(",")):
        arguments += ["--plugin", plugin]
    return Job(
        name=recipe.name,
        arguments=("fit", *arguments, "--run-dir", run_dir, "--resume", "auto", "--wait"),
        run_dir=run_dir,
        nodes=nodes,
        devices=devices,
        gpus=trainer.accelerator != "cpu",
        cpus=workers + 1,
        folder=Path.cwd(),
        programs=Path(sys.executable).parent,
    )


def _write(path: Path, script: str) -> None:
    """Write the script, and keep a different script of this name as NAME.before."""
    if path.exists() and path.read_bytes() != script.encode():
        before = path.with_name(f"{path.name}.before")
        path.replace(before)
        log.info("%s existed already; the old script is now %s", path, before)
    path.write_text(script, encoding="utf-8")
    log.info("written: %s", path)
