"""Launchers: describe a run for any cluster, and write the script that starts and continues it."""

from __future__ import annotations

import logging
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from zoo import registry
from zoo.config import Recipe, load
from zoo.config.command_line import parse_options, parse_overrides, split_words
from zoo.errors import ARGUMENT, ConfigIssue, OptionError, RecipeError, nearest
from zoo.options import Count
from zoo.run.load import load_recipe

SECONDS_TO_SAVE = 180
"""Time that a run has to save its state before it is killed."""

PREAMBLE = """\
cd {folder} || exit 1
export PATH=${{ZOO_BIN:-{programs}}}:$PATH # where zoo and torchrun are
"""
log = logging.getLogger("zoo")

# a trainer that this machine has, for checking a recipe that will run on another one
LOCAL_TRAINER = (
    "trainer.accelerator=cpu",
    "trainer.devices=1",
    "trainer.num_nodes=1",
    "trainer.precision=32-true",
)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run that continues where it was stopped."""

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

    @property
    def title(self) -> str:
        """The name in characters that no scheduler or shell interprets."""
        return re.sub(r"[^A-Za-z0-9._-]+", "-", self.name).strip("-.") or "run"

    @property
    def preamble(self) -> str:
        """The lines of a shell script that come before the run itself."""
        folder, programs = shlex.quote(str(self.folder)), shlex.quote(str(self.programs))
        return PREAMBLE.format(folder=folder, programs=programs)

    @property
    def command(self) -> str:
        """`arguments`, quoted for a shell."""
        return shlex.join(self.arguments)


class Launcher(Protocol):
    """A member of `zoo/launch`; its keyword-only arguments are options of `zoo launch`."""

    def write_script(self, job: Job) -> str:
        """Return the script that starts a job, and continues it when it is started again."""
        ...

    def format_submission(self, file: str, job: Job) -> str:
        """Return the command that runs the script `file`, which is quoted for a shell."""
        ...


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """Options of `zoo launch` for every launcher."""

    nodes: Count | None = None
    """Number of nodes; null takes trainer.num_nodes of the recipe."""
    devices: Count | None = None
    """GPUs, or processes on the CPU, on each node; null takes trainer.devices of the recipe."""
    run_dir: str | None = None
    """Run directory; null takes runs/<recipe>/<hash>."""
    print: bool = False
    """Print the script instead of writing it to a file."""


def launch(launcher: str, recipe: str, words: Sequence[str], plugins: Sequence[str]) -> None:
    """Write a script that starts a run on a cluster, or print it.

    Args:
        launcher: A registered launcher, slurm or torchrun.
        recipe: A recipe file or a registered name.
        words: `key=value` options of the launcher, and overrides of the recipe.
        plugins: Plug-in packages of the run.

    Raises:
        RecipeError: The launcher, an option or the recipe is wrong; nothing was written.
    """
    if launcher not in registry.names("launchers"):
        remedy = nearest(launcher, registry.names("launchers"))
        raise RecipeError(ConfigIssue(ARGUMENT, launcher, "there is no such launcher", remedy))
    cls = registry.find("launchers", launcher)
    own, overrides = split_words(words, (LaunchOptions, cls))
    common, special = parse_options(own, (LaunchOptions, cls))
    options = LaunchOptions(**common)
    try:
        chosen = cast(Launcher, cls(**special))
    except OptionError as error:
        raise RecipeError(ConfigIssue(ARGUMENT, error.key, str(error))) from None

    job = _build_job(_check_recipe(recipe, overrides, options), recipe, overrides, options, plugins)
    script = chosen.write_script(job)
    if options.print:
        print(script, end="")
        return

    path = Path(f"{job.title}.{launcher}.sh")
    _write(path, script)
    processes = job.nodes * job.devices
    log.info("%d processes: %d on each of %d nodes", processes, job.devices, job.nodes)
    log.info("run directory: %s", job.run_dir)
    log.info("next: %s", chosen.format_submission(shlex.quote(str(path)), job))


def _check_recipe(name: str, overrides: Sequence[str], options: LaunchOptions) -> Recipe:
    """Load a recipe and check all but its trainer, whose devices may be on the cluster alone."""
    for option, key in (("nodes", "trainer.num_nodes"), ("devices", "trainer.devices")):
        is_overridden = any(word.startswith(f"{key}=") for word in overrides)
        if is_overridden and getattr(options, option) is not None:
            problem = f"{option} sets it too"
            raise RecipeError(ConfigIssue(ARGUMENT, key, problem, "leave one of them out"))

    recipe = load(name, parse_overrides(overrides))
    if options.devices is None and "," in str(recipe.trainer.devices):
        problem = "the cluster chooses the devices, so they cannot be named"
        raise RecipeError(recipe.make_issue("trainer.devices", problem, "write devices=COUNT"))
    load_recipe(name, parse_overrides([*overrides, *LOCAL_TRAINER]))
    return recipe


def _build_job(
    recipe: Recipe,
    name: str,
    overrides: Sequence[str],
    options: LaunchOptions,
    plugins: Sequence[str],
) -> Job:
    trainer = recipe.trainer
    devices = options.devices or (trainer.devices if isinstance(trainer.devices, int) else 1)
    nodes = options.nodes or trainer.num_nodes
    run_dir = options.run_dir or f"runs/{recipe.name}/{recipe.hash}"

    words = [name, *overrides, f"trainer.num_nodes={nodes}", f"trainer.devices={devices}"]
    words += [word for plugin in plugins for word in ("--plugin", plugin)]
    return Job(
        name=recipe.name,
        arguments=("fit", *words, "--run-dir", run_dir, "--resume", "auto", "--wait"),
        run_dir=run_dir,
        nodes=nodes,
        devices=devices,
        gpus=trainer.accelerator != "cpu",
        cpus=recipe.data.options.get("workers", 0) + 1,
        folder=Path.cwd(),
        programs=Path(sys.executable).parent,
    )


def _write(path: Path, script: str) -> None:
    """Write the script; another one of this name is kept beside it."""
    if path.exists() and path.read_bytes() != script.encode():
        before = path.with_name(f"{path.name}.before")
        path.replace(before)
        log.info("%s existed already; the old script is now %s", path, before)
    path.write_text(script, encoding="utf-8")
    log.info("written: %s", path)
