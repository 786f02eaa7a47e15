"""`zoo fit`: train a recipe in a run directory, then test its best checkpoint."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import lightning as L
import torch

from zoo.config import Recipe
from zoo.config.stages import count_stages
from zoo.data.base import SPLITS, DataModule, Datasets
from zoo.data.spec import name_classes
from zoo.diagnostics.callback import AttentionDiagnostics
from zoo.errors import DataError, Message, Setting, ZooError
from zoo.models.transformer import compile_model, enable_activation_checkpointing, find_transformers
from zoo.optim.base import find_encoding_parameters
from zoo.run import checkpoint, init_from, loggers, run_dir
from zoo.run.accepted_changes import check_accepted
from zoo.run.build import Experiment
from zoo.run.callbacks.checkpointing import Checkpoints, SealedCheckpointIO, StopWithoutImprovement
from zoo.run.callbacks.ema import ExponentialMovingAverage
from zoo.run.callbacks.manifest import END, CostTracker, StartManifest, measure_step_seconds
from zoo.run.callbacks.nan_guard import FiniteGuard
from zoo.run.callbacks.profile import StepProfile
from zoo.run.callbacks.progress import EvaluationProgress, TrainingProgress
from zoo.run.callbacks.stage_changes import StageChanges
from zoo.run.callbacks.stop_on_signal import StopOnSignal
from zoo.run.init_from import TransferReport
from zoo.run.machine import check_denormals, count_cores, find_peak_flops, use_float32_matmul
from zoo.run.memory import suggest_smaller
from zoo.run.preflight import build_experiment, check_data, plan_backends
from zoo.run.processes import Processes, count_missing_processes, join_processes, run_in_processes
from zoo.run.requirements import count_training_flops
from zoo.run.resume import ResumePoint, find_resume_point
from zoo.run.run_dir import RUN_LOCK
from zoo.tasks.base import Task
from zoo.tasks.metrics import (
    CONFUSION,
    express_baselines,
    find_best_baseline,
    is_beaten,
    write_confusion,
)
from zoo.tasks.sharding import Sharding
from zoo.utils import explain_memory, format_duration, log_thread_failures, write_json

log = logging.getLogger("zoo")

# between messages of a process that waits for another
WAIT_SECONDS = 30.0
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables by which users choose a number of threads."""


class Start(NamedTuple):
    """The directory of a run and what the run starts from.

    Attributes:
        run: The run directory.
        checkpoint: The checkpoint to resume from, None for a new run.
        step: Optimiser steps done by it.
        donor: The checkpoint whose weights a new run is initialised with, if any.
        threads: The number of CPU threads and who chose it, as text; empty on other devices.
        epochs: Epochs done before the batch size changed; None if it did not.
    """

    run: Path
    checkpoint: Path | None
    step: int
    donor: Path | None
    threads: str
    epochs: int | None = None


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """The result of a training.

    Attributes:
        recipe: The name of the recipe.
        run: The run directory.
        monitor: The metric that chooses the best checkpoint; empty if the task has none.
        mode: Whether the monitored metric should be low ("min") or high ("max").
        best: The best value of the monitored metric; None if no validation gave a finite one.
        checkpoint: The best checkpoint; None if it was not tested.
        count: Test samples.
        metrics: Metrics on the test data.
        baselines: {metric: {baseline: value}} of what a model must beat.
        data: The data, in a line.
        minutes: Minutes of training, over all attempts.
        processor_minutes: Minutes in which cores worked for the training process, all cores
            together; less than `minutes` where it had to wait for a core. None if unknown.
        init_from: What `trainer.init_from` took from another checkpoint, if anything.
    """

    recipe: str
    run: Path
    monitor: str
    mode: str
    best: float | None
    checkpoint: Path | None = None
    count: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    baselines: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    data: str = ""
    minutes: float = 0.0
    processor_minutes: float | None = None
    init_from: Mapping[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, as `zoo fit --json` prints it; `from_dict` reads it."""
        plain = {attribute.name: getattr(self, attribute.name) for attribute in fields(self)}
        plain |= {"run": str(self.run), "checkpoint": str(self.checkpoint or "") or None}
        if self.init_from is None:
            del plain["init_from"]
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """Read what `to_dict` returned."""
        checkpoint = plain["checkpoint"]
        paths = {"run": Path(plain["run"]), "checkpoint": checkpoint and Path(checkpoint)}
        return cls(**{**plain, **paths})


def fit(
    recipe: Recipe,
    run: Path | None = None,
    resume: str = "never",
    *,
    datasets: Datasets | None = None,
    accept_changes: Sequence[str] = (),
    wait: bool = False,
    is_tested: bool = True,
    started: Callable[[Path], None] | None = None,
) -> FitResult:
    """Train a recipe and test its best checkpoint.

    Args:
        recipe: The resolved recipe.
        run: The run directory. None: a new one under `runs`.
        resume: "never", "auto", or the checkpoint to resume from.
        datasets: What `data: {name: torch_dataset}` reads.
        accept_changes: Keys of the recipe that may differ from those of the checkpoint.
        wait: Wait until no other process trains in the run directory, instead of raising.
        is_tested: Whether the best checkpoint is tested. Otherwise no test sample is read.
        started: Called with the run directory once it exists.

    Returns:
        The result, in all processes.

    Raises:
        ZooError: With the exit code of the failure.
    """
    # a wrong recipe ends here, before processes start or a directory is made
    if accept_changes:
        check_accepted(accept_changes, resume)
    experiment = build_experiment(recipe, datasets=datasets)
    check_data(experiment, SPLITS if is_tested else SPLITS[:2])
    # nobody has started the other processes: start all of them and wait, training nothing here
    count = count_missing_processes(recipe, experiment.trainer)
    if count:
        job = {
            "run": None if run is None else str(run),
            "resume": resume,
            "accept_changes": [*accept_changes],
            "wait": wait,
            "is_tested": is_tested,
        }
        result_of_first = run_in_processes(count, "fit", recipe, job)
        return FitResult.from_dict(result_of_first)

    # from here on, every process of the run executes the same lines
    processes = join_processes(recipe, experiment.trainer)
    with contextlib.ExitStack() as locks:
        # one process decides on directory and checkpoint: several would race for both
        find = partial(find_resume_point, accepted=accept_changes)
        prepare = partial(_prepare, experiment, run, resume, find, processes, locks, wait=wait)
        start = processes.run_on_rank_zero(prepare)
        while start is None:
            # in turns, since the other processes wait for an answer with a time limit
            start = processes.run_on_rank_zero(prepare)
        if started is not None:
            started(start.run)
        if processes.first:
            # on the same stack as the lock, so that the log is closed before the lock is given up
            locks.enter_context(loggers.log_to_file(start.run / "train.log"))
        with (
            explain_memory(partial(suggest_smaller, recipe, start.run)),
            _explain_failures(start.run, processes),
            log_thread_failures(),
        ):
            result = train(experiment, start, processes, is_tested=is_tested)
    return result


def _prepare(
    experiment: Experiment,
    path: Path | None,
    resume: str,
    find: Callable[[Recipe, Path | None, str], ResumePoint],
    processes: Processes,
    locks: contextlib.ExitStack,
    *,
    wait: bool,
) -> Start | None:
    """Find what the run starts from by `find`, create and lock its directory.

    Returns:
        The start; None if another process still has the directory and `wait` is set.
    """
    recipe = experiment.recipe
    loggers.check_installed(recipe)
    continued = _find_continued(recipe, path, resume, find)
    if continued is not None:
        # once the lock is given up: a run that could not begin leaves no folder behind
        locks.callback(_remove_empty, continued)
        if not _lock(continued, locks, wait=wait):
            return None
    # whoever had the directory until now may have saved a later step
    point = ResumePoint()
    if resume != "never":
        point = find(recipe, continued if resume == "auto" else path, resume)

    # before a run directory is created: `latest` would then be this very run
    is_initialised = recipe.init_from is not None and point.checkpoint is None
    donor = init_from.find_donor(experiment) if is_initialised else None
    threads = _set_threads(experiment, point.threads, processes.count)
    run = point.run
    if run is None:
        run = run_dir.create(recipe, path, resume == "auto", processes.count)
    # a new directory is locked after it was made: until then nobody knows its name
    if run != continued:
        _lock(run, locks, wait=False)
    checkpoint.remove_unfinished(run)
    return Start(run, point.checkpoint, point.step, donor, threads, point.epochs)


def _set_threads(experiment: Experiment, previous: int | None, processes: int) -> str:
    """Set the number of CPU threads of a run that resumes.

    The number changes how sums round, so it depends on nothing that varies: by default torch takes
    the cores that this process may use, however busy they are, and a resumed run keeps its number.

    Args:
        experiment: What will be trained.
        previous: The threads that the run had before, if it resumes.
        processes: Number of processes; several have their share of the cores already.

    Returns:
        The number and who chose it, as text; empty where another device computes.
    """
    recipe, default = experiment.recipe, torch.get_num_threads()
    if experiment.trainer.strategy.root_device.type != "cpu":
        return ""
    if isinstance(recipe.trainer.num_threads, int):
        return f"{default} (trainer.num_threads)"
    if processes > 1:
        return f"{default} in each process"
    # a choice of the user, in the recipe or the environment, is never overruled
    variables = [name for name in THREAD_VARIABLES if name in os.environ]
    if variables:
        return f"{default} ({variables[0]})"
    if recipe.trainer.num_threads is None or previous is None or previous == default:
        return str(default)
    if previous <= max(default, count_cores()):
        torch.set_num_threads(previous)
        return f"{previous}, as before"
    return f"{default}; the run had {previous} before, but this process may use fewer cores"


def _remove_empty(run: Path) -> None:
    # rmdir refuses a folder with anything in it, which is what is wanted here
    with contextlib.suppress(OSError):
        run.rmdir()


def _find_continued(
    recipe: Recipe,
    path: Path | None,
    resume: str,
    find: Callable[[Recipe, Path | None, str], ResumePoint],
) -> Path | None:
    """Find the directory that another process may have; None for a new one under `runs`."""
    run = path
    # "auto" continues in the directory that the user chose, if any
    if resume != "never" and (path is None or resume != "auto"):
        run = find(recipe, path, resume).run or path
    if run is not None:
        run_dir.check_name(run)
    if run is not None and run == path:
        if not (resume == "auto" and (run / "checkpoints").is_dir()):
            run_dir.check_free(run, replace_unsaved=False)
        run_dir.make(run)
    return run


def _lock(run: Path, locks: contextlib.ExitStack, *, wait: bool) -> bool:
    """Lock a run directory; return whether it is locked. With `wait`, try for WAIT_SECONDS."""
    message = "another zoo fit trains in this run directory"
    try:
        locks.enter_context(run_dir.lock(run, message, WAIT_SECONDS if wait else 0, RUN_LOCK))
    except run_dir.LockedError as error:
        if not wait:
            wait_for_it, elsewhere = Setting("wait", True), Setting("run_dir")
            hint = Message("wait for it with ", wait_for_it, ", or name another with ", elsewhere)
            raise run_dir.LockedError(f"{error}; ", hint) from None
        log.info("%s; waiting", error)
        return False
    except OSError as error:
        raise run_dir.refuse(run, error) from None
    return True


@contextlib.contextmanager
def _explain_failures(run: Path, processes: Processes) -> Iterator[None]:
    """Log all failures; raise those of the machine as ZooError."""
    try:
        yield
    except Exception as error:
        log.debug("failed", exc_info=error)
        remaining = checkpoint.describe_checkpoints(run / "checkpoints")
        if isinstance(error, OSError) and error.filename is None:
            # such as a full disk
            raise ZooError(f"{run}: {error.strerror or error}; {remaining}") from None
        if processes.is_connection_error(error):
            message = processes.explain_lost(error)
            raise ZooError(f"process {processes.rank} {message}; {remaining}") from None
        raise


def check_test_split(data: DataModule, trainer: L.Trainer) -> None:
    """Check that all processes of a trainer get samples of the test split.

    Otherwise a training would end in that error, before its result is known.

    Raises:
        DataError: There are fewer samples than processes, or they cannot be read.
    """
    # as Lightning attaches it for training
    data.trainer = trainer
    data.setup("test")
    try:
        data.build_loader("test")
    except DataError as error:
        hint = "train in fewer processes, or with a larger data.test"
        raise DataError("the test split: ", error.problem, f"; {hint}") from None


def train(
    experiment: Experiment, start: Start, processes: Processes, *, is_tested: bool
) -> FitResult:
    """Train, then test the best checkpoint if asked."""
    recipe, data, trainer = experiment.recipe, experiment.training_data, experiment.trainer
    if is_tested and processes.count > 1:
        processes.run_on_rank_zero(partial(check_test_split, data, trainer))
    # before anything is built: initial weights and sample order follow from the seed
    L.seed_everything(recipe.seed, workers=True, verbose=False)
    task, transfer = _build_task(experiment, start, processes)
    if start.epochs is not None:
        task.changed_at = start.step, start.epochs
    # under 16-mixed, the scaler of gradients expects them in the dtype of the weights
    dtype = torch.bfloat16 if recipe.trainer.precision == "bf16-mixed" else None
    task.sharding = Sharding(
        dtype, recipe.trainer.reshard_after_forward, recipe.trainer.collective_timeout
    )
    storage = SealedCheckpointIO(background=recipe.trainer.async_checkpoint)
    checkpoints = Checkpoints(start.run, recipe, storage, task, processes)
    stages = StageChanges(experiment) if recipe.stages else None
    if stages is not None:
        stages.begin(task, start.step)
    signals, costs = StopOnSignal(processes, checkpoints), CostTracker()

    trainer.strategy.checkpoint_io = storage
    callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    callbacks += [] if stages is None else [stages]
    callbacks += _build_callbacks(experiment, task, checkpoints, [costs, signals])
    if processes.first:
        trainer.loggers = loggers.build_loggers(recipe, start.run, keep_until=start.step)
        _begin(experiment, task, start, transfer)
    if recipe.trainer.activation_checkpointing:
        selective = recipe.trainer.activation_checkpointing == "selective"
        enable_activation_checkpointing(task.model, selective=selective)
    compile_model(task.model, recipe.trainer.compile, recipe.trainer.compile_mode)

    # handlers cover test and training, so that a signal between the two is not lost
    with signals, use_float32_matmul(recipe.trainer.float32_matmul):
        trainer.fit(task, datamodule=data, ckpt_path=start.checkpoint, weights_only=True)
        spent = costs.state_dict()
        worked = spent["processor_seconds"]
        result = FitResult(
            recipe=recipe.name,
            run=start.run,
            monitor=task.monitor,
            mode=task.mode,
            best=checkpoints.best,
            minutes=spent["seconds"] / 60,
            processor_minutes=None if worked is None else worked / 60,
        )
        if not is_tested:
            return result
        # the best checkpoint is on the disk by now, in all processes: on_train_end waits for it
        best = checkpoint.locate(start.run)
        if stages is not None:
            # the best weights may be of an earlier stage than the last ones
            step = checkpoint.read(best)["global_step"]
            stages.begin(task, step)
            data = experiment.at_step(step).data
        trainer.test(task, datamodule=data, ckpt_path=best, weights_only=True, verbose=False)

    metrics = {
        key: float(value)
        for key, value in trainer.callback_metrics.items()
        if key.startswith("test/")
    }
    baselines = {}
    if task.has_data_baselines:
        baselines = express_baselines(data.compute_baselines(), metrics)
    if processes.first and task.confusion is not None:
        classes = name_classes(data.spec, len(task.confusion))
        write_confusion(start.run / CONFUSION, classes, task.confusion)
        loggers.log_confusion(trainer.loggers, classes, task.confusion, trainer.global_step)
    loggers.log_results(trainer.loggers, recipe, metrics, trainer.global_step)
    result = replace(
        result,
        checkpoint=best,
        count=data.count_samples("test"),
        metrics=metrics,
        baselines=baselines,
        data=data.title,
        init_from=None if transfer is None else transfer.plain(),
    )
    _log_results(result)
    if processes.first:
        end = {
            **result.to_dict(),
            "steps": trainer.global_step,
            "step_seconds": measure_step_seconds(recipe, start.run, processes.count),
            "memory": spent["memory"],
            "device": trainer.strategy.root_device.type,
            "environment": run_dir.describe_environment(recipe, processes.count),
        }
        # last of all: the file marks the run as complete
        write_json(end, start.run / END)
    return result


def _build_task(
    experiment: Experiment, start: Start, processes: Processes
) -> tuple[Task, TransferReport | None]:
    """Build the task with its initial weights, and report which of them another recipe gave."""
    if experiment.recipe.trainer.strategy == "fsdp" and not processes.first:
        # its weights will be those of the first process
        return experiment.build_task(device="meta"), None
    task = experiment.build_task()
    if start.donor is None:
        return task, None
    return task, init_from.initialise(task.model, start.donor)


def _build_callbacks(
    experiment: Experiment, task: Task, checkpoints: Checkpoints, final_callbacks: list[L.Callback]
) -> list[L.Callback]:
    """Build the callbacks in the order in which Lightning calls them."""
    recipe, processes = experiment.recipe, checkpoints.processes
    callbacks: list[L.Callback] = []
    if recipe.trainer.ema_decay is not None:
        # first, so that all others see a step as a whole, its average included
        callbacks.append(ExponentialMovingAverage(recipe.trainer.ema_decay))
    diagnostics = recipe.diagnostics
    if diagnostics.every_n_steps is not None:
        if recipe.trainer.fast_dev_run:
            # a trial of one batch tries the diagnostics too, at whatever cost
            diagnostics = replace(diagnostics, every_n_steps=1, max_overhead=1.0)
        callbacks.append(
            AttentionDiagnostics(
                diagnostics,
                processes.broadcast,
                processes.all_reduce_max,
                partial(_has_attention, checkpoints.folder.parent / "metrics.csv"),
            )
        )
    if recipe.trainer.early_stopping is not None:
        callbacks.append(StopWithoutImprovement(task, recipe.trainer.early_stopping))
    callbacks += [experiment.build_callback(choice) for choice in recipe.trainer.callbacks]
    progress = [_build_progress(experiment, task), EvaluationProgress()]
    profile: list[L.Callback] = []
    if recipe.trainer.profile is not None and processes.first:
        # a trial of one step tries the profile too
        first, last_step = (1, 1) if recipe.trainer.fast_dev_run else recipe.trainer.profile.steps
        profile.append(StepProfile(checkpoints.folder.parent, first, last_step))
    # the guard stops before a broken weight is saved, and signals come last, after all state of a
    # step
    return [
        *callbacks,
        *progress,
        FiniteGuard(checkpoints),
        checkpoints,
        *profile,
        *final_callbacks,
    ]


def _build_progress(experiment: Experiment, task: Task) -> TrainingProgress:
    """Build the callback that shows progress, with what the utilization of a GPU follows from."""
    device, options = experiment.trainer.strategy.root_device, experiment.recipe.trainer
    if device.type != "cuda":
        return TrainingProgress()
    name = torch.cuda.get_device_name(device)
    peak = find_peak_flops(name, options.precision, options.float32_matmul)
    # operations take a pass to count, so only where they lead to a number
    by_stage = [
        None if peak is None else count_training_flops(staged, task.model)
        for _, staged in experiment.list_stages()
    ]
    flops = [number for number in by_stage if number is not None]
    if peak is None:
        log.info("MFU is not logged: no peak of %s in %s is known", name, options.precision)
    elif not flops:
        reason = "a step has no fixed number of operations: samples of many sizes, frozen weights"
        log.info("MFU is not logged: %s", reason)
    recipe = experiment.recipe
    count = (lambda step: flops[count_stages(recipe, step)]) if flops else None
    return TrainingProgress(count, peak)


def _has_attention(file: Path, step: int) -> bool:
    """Return whether a file of metrics has measures of attention at a step, counted from 0."""
    if not file.exists():
        return False
    columns, rows = loggers.read(file)
    names = [name for name in columns if name.startswith("attention/")]
    return any(row[name] for row in rows if row["step"] == str(step) for name in names)


def _begin(
    experiment: Experiment, task: Task, start: Start, transfer: TransferReport | None
) -> None:
    """Log what begins; a new run also writes it to start.json."""
    recipe, trainer = experiment.recipe, experiment.trainer
    parameters = sum(parameter.numel() for parameter in task.model.parameters())
    log.info("Recipe: %s, %s parameters", recipe.name, f"{parameters:,}")
    log.info("Run directory: %s", start.run)
    log.info("Data: %s", experiment.data.title)
    if start.threads:
        log.info("CPU threads: %s", start.threads)
    check_denormals(trainer.strategy.root_device.type)
    if start.checkpoint is not None:
        log.info("Resuming from %s", start.checkpoint)
    if start.epochs is not None:
        options = recipe.data.options
        batch_size = options.get("global_batch_size") or options["batch_size"]
        log.info("Batch size: %s from step %d on", batch_size, start.step)

    device = trainer.strategy.root_device.type
    if recipe.trainer.float32_matmul != "highest":
        log.info("Products of float32 matrices: %s precision", recipe.trainer.float32_matmul)
    plans = plan_backends(task.model, experiment.spec, device)
    for line in _describe_backends(task.model, plans):
        log.info("Attention backend%s", line)
    factor = recipe.optim.options.get("encoding_lr", 1.0)
    if factor != 1 and not find_encoding_parameters(task.model):
        log.info("optim.encoding_lr %g has no effect: the encoding has no parameters", factor)
    for line in () if transfer is None else transfer.lines():
        log.info(line)
    # a run that is resumed wrote it when it began
    if start.checkpoint is None:
        names = [*dict.fromkeys(name for name, _ in plans)]
        facts = {
            "backends": names,
            "monitor": task.monitor,
            "device": device,
            "flops": experiment.flops,
        }
        manifest = StartManifest(start.run, task.model, facts)
        trainer.callbacks.append(manifest)  # type: ignore[attr-defined]


def _describe_backends(model: torch.nn.Module, plans: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield the backend of each type of layers and the reason, once however many layers."""
    types = [name for transformer in find_transformers(model) for name in transformer.layer_types]
    # a model without types has layers of one kind
    named = zip(types if len(types) == len(plans) else [""] * len(plans), plans, strict=True)
    for kind, (name, reason) in dict.fromkeys(named):
        yield f"{kind and f' of {kind} layers'}: {name} ({reason})"


def _log_results(result: FitResult) -> None:
    duration = format_duration(60 * result.minutes)
    if result.best is None:
        log.info("No validation gave a finite %s: testing the last weights", result.monitor)
    else:
        log.info("Best %s: %.4f", result.monitor, result.best)
    metrics = ", ".join(f"{name} {value:.4f}" for name, value in result.metrics.items())
    log.info("Test metrics: %s (trained for %s)", metrics, duration)
    for line in describe_baselines(result):
        log.info(line)
    log.info("Run directory: %s", result.run)


def describe_baselines(result: FitResult) -> Iterator[str]:
    """Yield a line for each baseline, in the units of the metrics, and one if the best one wins."""
    names = dict.fromkeys(name for values in result.baselines.values() for name in values)
    for name in names:
        shown = ", ".join(
            f"{metric} {values[name]:.4f}"
            for metric, values in result.baselines.items()
            if name in values
        )
        yield f"Baseline {name}: {shown}"
    metric = f"test/{result.monitor.rpartition('/')[2]}"
    baselines, value = result.baselines.get(metric, {}), result.metrics.get(metric)
    best = find_best_baseline(metric, baselines)
    if best and value is not None and not is_beaten(metric, value, baselines[best]):
        yield f"Inconclusive: {metric} {value:.4f} does not beat {best}, {baselines[best]:.4f}"
