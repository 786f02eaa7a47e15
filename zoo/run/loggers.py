"""Loggers: metrics.csv always, those that a recipe names, and train.log."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import html
import io
import logging
import os
import platform
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import MLFlowLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

from zoo import registry
from zoo.config import Recipe
from zoo.errors import DataError, RecipeError
from zoo.packages import list_missing, suggest_install
from zoo.registry import register
from zoo.reporting.tables import format_markdown
from zoo.utils import EscapingFormatter, create_file, open_own, read_text

log = logging.getLogger("zoo")

_group: ContextVar[str] = ContextVar("group", default="")

LARGEST_TABLE = 20  # classes of a confusion matrix that TensorBoard can show


@contextlib.contextmanager
def log_to_file(path: Path) -> Iterator[None]:
    """Write the log within the block to a file too, debug messages included."""
    handler = _LogFile(path, encoding="utf-8")
    handler.setFormatter(EscapingFormatter("%(asctime)s %(levelname)s %(message)s"))
    handler.setLevel(logging.DEBUG)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        handler.close()


class _LogFile(logging.FileHandler):
    """Writes train.log, until the run has ended."""

    ended = False

    def _open(self) -> io.TextIOWrapper:
        return io.TextIOWrapper(open_own(Path(self.baseFilename)), encoding="utf-8")

    def emit(self, record: logging.LogRecord) -> None:
        # logging itself would open a closed file again, for a thread that logs late
        if not self.ended:
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Ignore a full disk; the run itself reports it."""

    def close(self) -> None:
        self.ended = True
        with contextlib.suppress(OSError):
            super().close()


def read(path: Path) -> tuple[list[str], list[dict[str, Any]]]:
    """Return columns and rows of a file of metrics, without a last line that a full disk cut.

    Raises:
        DataError: The file cannot be read, or is damaged; the message names the line.
    """
    try:
        content = read_text(path)
        # every whole row ends with a newline
        lines = [line for line in io.StringIO(content, newline="") if line.endswith("\n")]
        reader = csv.DictReader(lines, strict=True)
        columns, rows = list(reader.fieldnames or ()), list(reader)
        message = _find_problem(columns, rows)
    except OSError as error:
        message = f"cannot be read, {error.strerror or error}"
    except (ValueError, csv.Error) as error:
        message = f"not as zoo writes it, {str(error)[:80]}"
    if message:
        raise DataError(f"{path}: {message}; remove it, or have it written anew")
    return columns, rows


def _find_problem(columns: list[str], rows: list[dict[str, Any]]) -> str:
    """Return what zoo has not written in a file of metrics; empty if nothing."""
    if "step" not in columns:
        return "not as zoo writes it, it has no column step"
    for number, row in enumerate(rows, 2):
        for name, value in row.items():
            # without a name: more values than columns; without a value: fewer
            if name is None or value is None:
                return f"not as zoo writes it, line {number} is no row of {len(columns)} values"
            # a row has the metrics of one moment, and nothing in the columns of others
            if value == "" and name != "step":
                continue
            is_number = True
            if name in ("step", "epoch"):
                is_number = value.isdecimal() and value.isascii()
            else:
                try:
                    float(value)
                except ValueError:
                    is_number = False
            if not is_number:
                return f"not as zoo writes it, line {number} has {value!r:.40} as {name}"
    return ""


class MetricsFile(Logger):
    """Writes metrics.csv: appends rows; a new metric adds a column.

    Args:
        path: The file. Its rows from before are kept.
        keep_until: Drop rows from this step on, which a resumed run repeats.
    """

    def __init__(self, path: Path, keep_until: int | None = None) -> None:
        super().__init__()
        self.path = path
        self.rows: list[dict[str, Any]] = []
        self.columns = ["step", "epoch"]
        if os.path.lexists(path):
            self.columns, rows = read(path)
            # a resumed run logs these steps again
            self.rows = [row for row in rows if keep_until is None or int(row["step"]) < keep_until]
            self._rewrite()

    @property
    def name(self) -> str:
        return "metrics"

    @property
    def version(self) -> str:
        return ""

    @property
    def experiment(self) -> None:
        return None

    @rank_zero_only
    def log_hyperparams(
        self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any
    ) -> None:
        """Ignore the recipe, which the run directory has already."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        row = {"step": step, **metrics}
        self.rows.append(row)
        new = [name for name in row if name not in self.columns]
        self.columns += new
        if new or not self.path.exists():
            self._rewrite()
        else:
            with io.TextIOWrapper(open_own(self.path), "utf-8", newline="") as file:
                csv.DictWriter(file, self.columns).writerow(row)

    def _rewrite(self) -> None:
        # written elsewhere and moved, so that a reader never sees half a file
        unfinished = self.path.with_suffix(".writing")
        with io.TextIOWrapper(create_file(unfinished), "utf-8", newline="") as file:
            writer = csv.DictWriter(file, self.columns)
            writer.writeheader()
            writer.writerows(self.rows)
        unfinished.replace(self.path)


@contextlib.contextmanager
def group_runs(name: str) -> Iterator[None]:
    """Make the runs within the block one group of their loggers."""
    token = _group.set(name)
    try:
        yield
    finally:
        _group.reset(token)


class LoggedRun(NamedTuple):
    """The run that a logger writes about.

    Attributes:
        recipe: Its recipe.
        folder: Its directory.
        step: Optimizer steps done; a resumed run repeats those from here on.
        group: The comparison that it is a cell of; empty for none.
    """

    recipe: Recipe
    folder: Path
    step: int
    group: str = ""


class Tracker:
    """The base class of loggers: builds one of Lightning's for a run.

    Options of a logger are keyword-only arguments.
    """

    name: str
    package: str | None = None
    """The distribution that it needs in addition to those that zoo requires, if any."""

    def build(self, run: LoggedRun) -> Logger:
        """Build the logger of a run."""
        raise NotImplementedError


@register
class Csv(Tracker):
    """metrics.csv in the run directory; every run has it."""

    name = "csv"

    def build(self, run: LoggedRun) -> Logger:
        """Build the logger."""
        return MetricsFile(run.folder / "metrics.csv", keep_until=run.step)


@register
class TensorBoard(Tracker):
    """TensorBoard's files in the run directory, with histograms and pictures of attention."""

    name = "tensorboard"

    def build(self, run: LoggedRun) -> Logger:
        """Build the logger."""
        return TensorBoardLogger(
            run.folder, name="", version="tensorboard", default_hp_metric=False
        )


@register
class Auto(TensorBoard):
    """The same as tensorboard: recipes of version 0.3 name it."""

    name = "auto"


@register
class Wandb(Tracker):
    """Weights & Biases: offline unless WANDB_MODE=online; a resumed run keeps its identity.

    Args:
        project: Name of the project. None: WANDB_PROJECT, or else zoo.
        group: Name of the group. None: the comparison that the run is a cell of, if it is one.
        tags: Tags of the run.
    """

    name = "wandb"
    package = "wandb"

    def __init__(
        self, *, project: str | None = None, group: str | None = None, tags: tuple[str, ...] = ()
    ) -> None:
        self.project, self.group, self.tags = project, group, tags

    def build(self, run: LoggedRun) -> Logger:
        """Build the logger."""
        return WandbLogger(
            name=run.folder.name,
            # the same identity after a resume, so that the curve goes on
            id=_make_identity(run.folder),
            project=self.project or os.environ.get("WANDB_PROJECT", "zoo"),
            # W&B reads WANDB_RUN_GROUP and WANDB_TAGS where these are None
            group=self.group or run.group or None,
            tags=list(self.tags) or None,
            save_dir=run.folder,
            offline=os.environ.get("WANDB_MODE", "offline") != "online",
        )


@register
class Mlflow(Tracker):
    """MLflow at MLFLOW_TRACKING_URI, or else a database in the run directory.

    Args:
        project: Name of the experiment. None: the comparison that the run is a cell of, or else the
            name of the recipe.
        group: Value of the tag `group`. None: the comparison.
        tags: Tags of the run, each with the value true.
    """

    name = "mlflow"
    package = "mlflow"

    def __init__(
        self, *, project: str | None = None, group: str | None = None, tags: tuple[str, ...] = ()
    ) -> None:
        self.project, self.group, self.tags = project, group, tags

    def build(self, run: LoggedRun) -> Logger:
        """Build the logger."""
        uri, artifacts = os.environ.get("MLFLOW_TRACKING_URI"), None
        if not uri:
            # a database, since MLflow 3.13 refuses plain files
            uri = f"sqlite:///{run.folder.resolve() / 'mlflow.db'}"
            artifacts = (run.folder / "mlflow").resolve().as_uri()
        group = self.group or run.group
        tags = {**dict.fromkeys(self.tags, "true"), **({"group": group} if group else {})}
        return MLFlowLogger(
            experiment_name=self.project or run.group or run.recipe.name,
            run_name=run.folder.name,
            tags=tags,
            tracking_uri=uri,
            artifact_location=artifacts,
        )


@register
class Trackio(Tracker):
    """Trackio, which keeps runs in its own folder on this machine; a resumed run goes on.

    Args:
        project: Name of the project. None: the comparison that the run is a cell of, or else the
            name of the recipe.
        group: Name of the group. None: the comparison.
        tags: Tags of the run, an entry of its configuration.
    """

    name = "trackio"
    package = "trackio"

    def __init__(
        self, *, project: str | None = None, group: str | None = None, tags: tuple[str, ...] = ()
    ) -> None:
        self.project, self.group, self.tags = project, group, tags

    def build(self, run: LoggedRun) -> Logger:
        """Build the logger."""
        return TrackioLogger(
            self.project or run.group or run.recipe.name,
            f"{run.folder.name}-{_make_identity(run.folder)}",
            group=self.group or run.group,
            tags=self.tags,
        )


class TrackioLogger(Logger):
    """Writes to a run of trackio, which begins with its first entry.

    Args:
        project: Name of the project.
        run: Name of the run.
        group: Name of its group; empty for none.
        tags: Its tags.
    """

    def __init__(self, project: str, run: str, group: str = "", tags: tuple[str, ...] = ()) -> None:
        super().__init__()
        self._project, self._run, self._config = project, run, dict[str, Any]()
        self._group, self._tags = group, tags

    @property
    def name(self) -> str:
        return self._project

    @property
    def version(self) -> str:
        return self._run

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The run of trackio, with `log` and `finish`."""
        if self._experiment is None:
            import trackio

            self._experiment = trackio.init(
                project=self._project,
                name=self._run,
                config=self._config | ({"tags": [*self._tags]} if self._tags else {}),
                # older versions know no groups
                **({"group": self._group} if self._group else {}),
                resume="allow",
                embed=False,
            )
        return self._experiment

    _experiment: Any = None

    @rank_zero_only
    def log_hyperparams(
        self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any
    ) -> None:
        """Keep the recipe, with which the run begins."""
        self._config = dict(params if isinstance(params, dict) else vars(params))

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.experiment.log(dict(metrics), step=step)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Send what waits, and end the run; more entries resume it."""
        if self._experiment is not None:
            self._experiment.finish()
            self._experiment = None


def _make_identity(run: Path) -> str:
    """Return a short name for a run directory of this machine."""
    identity = f"{platform.node()} {run.resolve()}"
    return hashlib.sha256(identity.encode()).hexdigest()[:12]


def check_installed(recipe: Recipe) -> None:
    """Raise RecipeError where a logger that the recipe names is not installed."""
    issues = []
    for choice in recipe.trainer.logger:
        package = registry.find("loggers", choice.name).package
        if package is not None and list_missing([package]):
            message, hint = f"{package} is not installed", suggest_install(package)
            issues.append(recipe.make_issue("trainer.logger", message, f"{hint}, or leave it out"))
    if issues:
        raise RecipeError(*issues)


def build_loggers(recipe: Recipe, run: Path, keep_until: int) -> list[Logger]:
    """Build the loggers: metrics.csv, then those of the recipe, which are given the recipe.

    Args:
        recipe: The recipe of the run.
        run: The run directory.
        keep_until: Optimizer steps done by the checkpoint that the run resumes from.
    """
    about = LoggedRun(recipe, run, keep_until, _group.get())
    built = [Csv().build(about)]
    for choice in recipe.trainer.logger:
        # metrics.csv is always written
        if choice.name == Csv.name:
            continue
        tracker: Tracker = registry.find("loggers", choice.name)(**choice.options)
        logger = tracker.build(about)
        logger.log_hyperparams(recipe.plain())
        built.append(logger)
    return built


def log_results(
    loggers: list[Logger], recipe: Recipe, metrics: dict[str, float], step: int
) -> None:
    """Add the results to TensorBoard's table of hyperparameters."""
    for logger in loggers:
        if isinstance(logger, TensorBoardLogger):
            logger.log_hyperparams(recipe.plain(), metrics, step)
            # write it now
            logger.finalize("success")


def log_confusion(
    loggers: list[Logger], classes: Sequence[str], counts: Sequence[Sequence[int]], step: int
) -> None:
    """Show a small confusion matrix in TensorBoard.

    Args:
        loggers: The loggers of the run.
        classes: The names of the classes, in their order.
        counts: Samples by label (rows) and predicted class (columns).
        step: Optimizer steps done.
    """
    if len(classes) > LARGEST_TABLE:
        return
    rows_of_text = [[name, *map(str, row)] for name, row in zip(classes, counts, strict=True)]
    table = format_markdown(["label", *classes], rows_of_text, text=["label"])
    for logger in loggers:
        if isinstance(logger, TensorBoardLogger):
            # TensorBoard shows Markdown, in which HTML is HTML
            logger.experiment.add_text("test/confusion", html.escape(table, quote=False), step)
