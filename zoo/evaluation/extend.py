"""`zoo extend`: ways to a longer context from one checkpoint, tested side by side."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor

from zoo.config import Overrides, Recipe, from_plain, join_overrides
from zoo.config.schema import LENGTH, parse_length
from zoo.diagnostics.capture import LayerAttention, capture_layers
from zoo.errors import ARGUMENT, ConfigIssue, Message, OptionError, RecipeError, Setting, Stopped
from zoo.evaluation.evaluate import DEFAULT_OVERRIDES, adapt_data
from zoo.evaluation.extend_result import ExtendResult, MethodResult, draw, read_methods
from zoo.evaluation.key_tokens import compute_long_perplexity, find_key_tokens
from zoo.evaluation.rotation_search import CANDIDATES, search_exponents
from zoo.options import Between, Choice, Count
from zoo.packages import skip_without_package
from zoo.run import checkpoint as checkpoints
from zoo.run import conditions, run_dir
from zoo.run.build import Experiment, build_task
from zoo.run.conditions import DROP, NONE, TRUNCATE
from zoo.run.fit import fit
from zoo.run.load import restore
from zoo.run.machine import check_denormals
from zoo.run.memory import suggest_smaller
from zoo.run.truncation import TruncatedContext, explain_untruncated
from zoo.suggestions import join_words, nearest
from zoo.tasks.base import Task
from zoo.tasks.causal_lm import CausalLM
from zoo.tasks.metrics import token_losses
from zoo.utils import explain_memory, write_json

log = logging.getLogger("zoo")

FILE, FIGURE, LOCK = "extend.json", "extend.png", "extend.lock"
TRAIN = "+train"
"""The end of the name of a method that trains after the change."""
WINDOWS = f"windows{TRAIN}"
"""SWAN's conversion: rotations in windowed layers, no positions in full ones."""
RULES = ("linear", "ntk", "yarn")
"""Rules that a training can follow: their frequencies do not depend on the text."""
TUNED = (*RULES, "dynamic")
"""Rules whose factor is chosen on validation data."""
MULTIPLES = (1.0, 1.5, 2.0)
"""Factors to choose from, relative to the one that a length requires."""
LONGROPE = "longrope"
"""Divisors of all frequencies, searched for on validation data."""
TEMPERATURE = "temperature"
"""All scores times 1 + c ln(s) at s times the trained length (UniformScale, arXiv:2404.12224)."""
HEAD_SCALE = "head_scale"
HEADS = f"{HEAD_SCALE}{TRAIN}"
"""A temperature for each head is trained, all other weights are frozen (arXiv:2404.12224)."""
DROPE = f"{DROP}{TRAIN}"
"""Positions are dropped, and longer texts get a temperature (arXiv:2512.12167)."""
GROWTHS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
"""Values of c to choose from: 0 is no temperature."""
HEADS_LR = 0.05
DEFAULTS = (
    NONE,
    TRUNCATE,
    *TUNED,
    LONGROPE,
    *(f"{name}{TRAIN}" for name in (NONE, "linear", "yarn", DROP)),
    WINDOWS,
    HEADS,
)
UNUSED = (
    *(f"trainer.{key}" for key in ("early_stopping", "save_top_k", "profile", "val_every_n_steps")),
    *(f"evaluate.{key}" for key in ("lengths", "stride", "extrapolation", "factors")),
    "evaluate.data_variants",
)
"""Keys of a recipe that a short training leaves out."""
POINTS = 32
"""Groups of positions of which the mean loss is kept."""


@dataclass(frozen=True, kw_only=True)
class GateOptions:
    """Limits that stop a method."""

    short_loss: Annotated[float, Between(0)] = 0.01
    """Largest share by which the loss at the trained length may rise."""


@dataclass(frozen=True, kw_only=True)
class ExtendOptions:
    """Options of `zoo extend`."""

    to: Count | Annotated[str, LENGTH] = "2x"
    """Length to reach: 512 tokens, or 4x for four times the trained length."""
    methods: tuple[str, ...] | None = None
    """Methods to test: none, truncate, rules of the encoding such as yarn, longrope, temperature,
    drop; with +train for those that train a little: yarn+train, drop+train, windows+train,
    head_scale+train. null: all that fit."""
    steps: Count = 100
    """Optimizer steps of each method that trains."""
    lr: Annotated[float, Between(1e-12)] | None = None
    """Learning rate of these steps; null for a third of that of the recipe."""
    gate: GateOptions = GateOptions()
    """What stops a method: {short_loss: 0.01} for a loss at the trained length 1 % above."""
    evaluator: str | None = None
    """Run whose model reads the new length and chooses the key tokens of LongPPL; null for none."""
    folder: str | None = None
    """Folder of extend.json, the figure and the trained runs; null for one in the run directory."""


@dataclass(frozen=True)
class Score:
    """The losses of a model on windows of text.

    Attributes:
        sums: Sum of the losses of each window in nats, float64 [W].
        counts: Targets of each window [W].
        positions: Mean loss of groups of positions, from the first on.
        depths: Share of right tokens of answers by tenth of the text that states them.
        long_perplexity: Perplexity of key tokens; None if none were chosen.
    """

    sums: Tensor
    counts: Tensor
    positions: tuple[float, ...]
    depths: tuple[float | None, ...]
    long_perplexity: float | None = None

    @property
    def loss(self) -> float:
        """The mean loss in nats per target."""
        return float(self.sums.sum() / self.counts.sum())


def extend(
    run: str | Path, overrides: Overrides = (), options: ExtendOptions | None = None
) -> ExtendResult:
    """Test ways to a longer context side by side, from one checkpoint.

    Each result is written when it is there: the same call goes on where it was stopped.

    Args:
        run: A run directory or a checkpoint.
        overrides: Changes of the stored recipe.
        options: What to reach, by which methods, and where to write.

    Raises:
        RecipeError: The model cannot be extended, or an option is wrong; nothing was measured.
    """
    options = options or ExtendOptions()
    # weights that come with zoo are at an address, and their results below runs
    path = checkpoints.locate(run)
    experiment, task = restore(path, join_overrides(DEFAULT_OVERRIDES, overrides))
    extension = Extension(path, experiment, task, options)
    home = checkpoints.name_results(run) or str(checkpoints.find_run_dir(path))
    folder = Path(options.folder or Path(home, f"extend-{extension.length}"))
    done = _open_folder(folder, extension.settings)
    message = "another zoo extend writes into this folder"
    with (
        run_dir.lock(folder, message, 0, LOCK),
        explain_memory(partial(suggest_smaller, extension.recipe)),
    ):
        return extension.run(folder, done)


def _open_folder(folder: Path, settings: Mapping[str, Any]) -> dict[str, MethodResult]:
    """Create the folder of results, or read those that are there.

    Raises:
        RecipeError: It has other files, or results of another call.
    """
    file = folder / FILE
    try:
        if not file.exists():
            others = (
                [one for one in folder.glob("*") if one.name != LOCK] if folder.exists() else []
            )
            if others:
                raise _refuse("folder", f"{folder} has other files, such as {others[0].name}")
            folder.mkdir(parents=True, exist_ok=True)
            return {}
        stored, done = read_methods(file)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _refuse("folder", f"{folder} cannot be used, {error}") from None
    # the methods may differ: those that are missing are added
    differing = [key for key, value in settings.items() if stored.get(key) != value]
    if differing:
        raise _refuse("folder", f"{folder} has results with another {join_words(differing)}")
    return done


def _refuse(key: str, problem: str | Message) -> RecipeError:
    remedy: Message | str = ""
    if key == "folder":
        remedy = Message("choose another with ", Setting("folder", "FOLDER"))
    return RecipeError(ConfigIssue(ARGUMENT, key, problem, remedy))


class Extension:
    """The measurements of one checkpoint.

    Args:
        path: The checkpoint file.
        experiment: Its recipe, with data and trainer.
        task: Its task.
        options: What to reach, and by which methods.

    Raises:
        RecipeError: The model cannot be extended, or an option is wrong.
    """

    def __init__(
        self, path: Path, experiment: Experiment, task: Task, options: ExtendOptions
    ) -> None:
        self.path, self.experiment, self.task, self.options = path, experiment, task, options
        self.recipe = experiment.recipe
        if not isinstance(task, CausalLM):
            own = f"{self.recipe.name} reads {task.spec.noun}, for task {self.recipe.task.name}"
            raise _refuse("", f"extend is for causal language models, and {own}")
        (self.trained,) = task.spec.size
        try:
            self.length = parse_length(options.to, self.trained, "to")
        except OptionError as error:
            raise _refuse(error.key, error.problem) from None
        # within the trained length no rule changes anything
        if self.length <= self.trained:
            message = f"{self.length} tokens are not more than the trained {self.trained}"
            raise _refuse("to", f"{message}; write 2x for twice as many")
        self.factors = (self.length / self.trained,)
        self.methods = self._choose_methods()
        self.evaluator = self._restore_evaluator()
        # before anything moves the task to a device
        self.weights = task.state_dict()
        self.device = experiment.trainer.strategy.root_device

    def _choose_methods(self) -> tuple[str, ...]:
        """Return the methods to test, the unchanged model first. Raises RecipeError."""
        rules = conditions.find_methods(self.task.model, self.factors)
        scaled = [name for name in TUNED if name in rules]
        has_positions = conditions.changes_model(self.task.model, DROP, self.factors)
        if has_positions and not scaled:
            message = f"the encoding of the model, {join_words(self.recipe.encodings)}, has no rule"
            remedy = "zoo eval with evaluate.lengths tests it unchanged"
            raise _refuse("", f"{message} for longer texts; {remedy}")
        trained = [NONE, *(name for name in RULES if name in rules)]
        trained += [DROP] if has_positions else []
        names = [f"{name}{TRAIN}" for name in trained]
        # layers that differ already have no common rotation to keep
        has_types = bool(self.recipe.model.options.get("layer_types"))
        if has_positions and not has_types and self.recipe.model.options["depth"] > 1:
            names.append(WINDOWS)
        searched = [LONGROPE] if "dynamic" in rules else []
        dropped = [DROP] if has_positions else []
        known = dict.fromkeys(
            [NONE, TRUNCATE, *rules, *searched, TEMPERATURE, *dropped, *names, HEADS]
        )
        if self.options.methods is None:
            defaults = DEFAULTS if has_positions else (*DEFAULTS, TEMPERATURE)
            return tuple(name for name in defaults if name in known)
        for name in self.options.methods:
            if name not in known:
                raise _refuse("methods", f"no method {name}; {nearest(name, [*known])}")
        return tuple(dict.fromkeys([NONE, *self.options.methods]))

    def _restore_evaluator(self) -> CausalLM | None:
        """Return the task that chooses key tokens; None without one. Raises RecipeError."""
        if self.options.evaluator is None:
            return None
        path = checkpoints.locate(self.options.evaluator)
        task = restore(path, DEFAULT_OVERRIDES)[1]
        if (
            not isinstance(task, CausalLM)
            or task.spec.token_vocabulary != self.task.spec.token_vocabulary
        ):
            raise _refuse("evaluator", "it is no language model with the vocabulary of the run")
        if (reads := task.spec.size[0]) < self.length:
            message = f"it was trained at {reads} tokens, and key tokens are those of {self.length}"
            raise _refuse("evaluator", message)
        if problem := explain_untruncated(task.model):
            raise _refuse("evaluator", problem)
        return task

    @property
    def settings(self) -> dict[str, Any]:
        """What results depend on, except the methods, which may be added later."""
        plain = {**asdict(self.options), "to": self.length, "lr": self.learning_rate}
        chosen = {key: plain[key] for key in ("to", "steps", "lr", "gate", "evaluator")}
        return {"checkpoint": str(self.path), "recipe": self.recipe.plain(), **chosen}

    @property
    def learning_rate(self) -> float | None:
        """The learning rate of methods that train."""
        rate = self.recipe.optim.options.get("lr")
        return self.options.lr or (None if rate is None else rate / 3)

    def run(self, folder: Path, done: dict[str, MethodResult]) -> ExtendResult:
        """Measure what is not done; each result is written when it is there."""
        check_denormals(self.device.type)
        for number, name in enumerate(self.methods, 1):
            if name not in done:
                log.info("%s (%d of %d)", name, number, len(self.methods))
                done[name] = self._measure(name, folder, done.get(NONE))
                log.info("%s: %s", name, done[name].describe())
                self._write(folder, done)
        # the numbers first: the renderer may end the process where memory is short
        result = self._conclude(folder, done)
        with skip_without_package("no figure of the extension"):
            draw(result, folder / FIGURE)
            result = replace(result, figure=folder / FIGURE)
        write_json({"settings": self.settings, **result.to_dict()}, folder / FILE)
        return result

    def _write(self, folder: Path, done: Mapping[str, MethodResult]) -> None:
        plain = self._conclude(folder, done).to_dict()
        write_json({"settings": self.settings, **plain}, folder / FILE)

    def _conclude(self, folder: Path, done: Mapping[str, MethodResult]) -> ExtendResult:
        return ExtendResult(
            recipe=self.recipe.name,
            checkpoint=self.path,
            folder=folder,
            trained=self.trained,
            length=self.length,
            gate=self.options.gate.short_loss,
            steps=self.options.steps,
            methods=tuple(done[name] for name in self.methods if name in done),
        )

    def _measure(self, name: str, folder: Path, plain: MethodResult | None) -> MethodResult:
        """Tune or train a method, and test it: first at the trained length, for the gate."""
        start = time.monotonic()
        rule, factor = name.removesuffix(TRAIN), None
        temperature, exponents = None, torch.empty(0)
        # 1. make the model: by a training, a search, or by a rule with a factor
        tokens, seconds, chosen = 0, 0.0, 0
        if name.endswith(TRAIN):
            recipe = self.change_recipe(name)
            task, seconds = self._train(recipe, folder / "runs" / name)
            batch = recipe.data.options["batch_size"] * recipe.trainer.accumulate_grad_batches
            tokens = self.options.steps * batch * recipe.data.options["length"]
        elif rule == LONGROPE:
            exponents, chosen = self._search(), CANDIDATES
            task = self.divide(exponents)
        else:
            if rule in TUNED:
                factor, chosen = self._tune(rule), len(MULTIPLES)
            recipe = self.recipe
            task = self.task if rule == TEMPERATURE else self.build(rule, factor)
        near_task = task
        if name in (TEMPERATURE, DROPE):
            began = time.monotonic()
            growth, chosen = self._choose_growth(recipe, task), len(GROWTHS)
            temperature = compute_temperature(growth, self.factors[0])
            task = self.heat(recipe, task, temperature)
            seconds += time.monotonic() - began if seconds else 0.0
        if chosen:
            tokens += chosen * int(self._read("val", self._middle).counts.sum())
        made = time.monotonic()
        # a training that went on counts all of its attempts
        seconds = seconds or made - start

        # these depend on the length of a text, and change nothing within the trained length
        is_unchanged = name in (NONE, TRUNCATE, "dynamic", LONGROPE)
        # 2. the gate: the loss at the trained length
        near = self.score(self.task if is_unchanged else near_task, "test", self.trained)
        result = MethodResult(
            name=name,
            short_loss=near.loss,
            factor=factor,
            temperature=temperature,
            exponents=tuple(round(value, 4) for value in exponents.tolist()),
            tokens=tokens,
            seconds=round(seconds, 2),
        )
        if plain is not None and not near.loss <= plain.short_loss * (
            1 + self.options.gate.short_loss
        ):
            return replace(result, stopped=True)
        # 3. the new length
        far = self.score(task, "test", self.length, self.key_tokens)
        return replace(
            result,
            loss=far.loss,
            window_losses=tuple(far.sums.tolist()),
            window_targets=tuple(int(count) for count in far.counts),
            positions=far.positions,
            depths=far.depths,
            long_perplexity=far.long_perplexity,
            test_seconds=round(time.monotonic() - made, 2),
        )

    @property
    def _middle(self) -> int:
        """The length to tune at: midway, so that no test is at it."""
        return (self.trained + self.length) // 2

    def _tune(self, rule: str) -> float:
        """Return the factor with the lowest validation loss, scaled from the length of tuning."""
        needed = self._middle / self.trained
        losses = {}
        for multiple in MULTIPLES:
            task = self.build(rule, multiple * needed, self._middle)
            losses[multiple] = self.score(task, "val", self._middle).loss
        # of equals the smallest factor, which changes least
        best = min(MULTIPLES, key=lambda multiple: (_finite(losses[multiple]), multiple))
        return best * self.factors[0]

    def _search(self) -> Tensor:
        """Return the exponents of longrope with the lowest validation loss."""
        factor = self._middle / self.trained
        plain = self.measure_waves(self.task)
        # a rule divides waves too, and a divisor is a power of the factor
        scaled = [self.measure_waves(self.build(rule, factor, self._middle)) for rule in RULES]
        starts = [(plain / waves).log() / math.log(factor) for waves in scaled]

        def score(exponents: Tensor) -> float:
            task = self.divide(exponents, self._middle)
            return self.score(task, "val", self._middle).loss

        return search_exponents(score, starts, factor)

    def divide(self, exponents: Tensor, length: int | None = None) -> Task:
        """Build a task whose frequencies are divided by powers of the factor, at a length."""
        factor = (length or self.length) / self.trained
        # a frequency is never raised
        divisors = (factor**exponents).clamp(min=1).tolist()
        recipe = conditions.divide_frequencies(
            self.recipe, self.task.model, (factor,), [*map(float, divisors)]
        )
        task = build_task(recipe, self.task.spec, is_trained=False)
        task.load_state_dict(self.weights, strict=True)
        return task.eval()

    def measure_waves(self, task: Task) -> Tensor:
        """Return the radians per token of each pair of channels, float64 [R].

        Raises:
            RecipeError: Layers or heads turn at different frequencies.
        """
        seen: list[Tensor] = []

        def note(layer: LayerAttention) -> None:
            waves = layer.chain.pair_waves(layer.call)
            if waves is not None:
                seen.append(waves.double().cpu().flatten(0, 1))

        with torch.no_grad():
            capture_layers(task.model.cpu(), task.spec.build_inputs(), note)
        rows = [row for waves in seen for row in waves]
        if not all(row.shape == rows[0].shape and torch.allclose(row, rows[0]) for row in rows):
            problem = (
                "layers or heads turn at different frequencies, and it has one divisor of each"
            )
            raise _refuse("methods", f"{LONGROPE}: {problem}")
        return rows[0]

    def _choose_growth(self, recipe: Recipe, task: Task) -> float:
        """Return the growth of the temperature with the lowest validation loss."""
        factor = self._middle / self.trained
        losses = {}
        for growth in GROWTHS:
            heated = self.heat(recipe, task, compute_temperature(growth, factor))
            losses[growth] = _finite(self.score(heated, "val", self._middle).loss)
        return min(GROWTHS, key=lambda growth: (losses[growth], growth))

    def heat(self, recipe: Recipe, task: Task, temperature: float) -> Task:
        """Build a task with the same weights, whose scores are multiplied by a temperature."""
        longer = conditions.append_encoding(recipe, HEAD_SCALE)
        heated = build_task(longer, task.spec, is_trained=False)
        weights = task.state_dict()
        # what the task lacks are the scales of the heads
        scales = {
            name: torch.full_like(value, temperature)
            for name, value in heated.state_dict().items()
            if name not in weights
        }
        heated.load_state_dict({**weights, **scales}, strict=True)
        return heated.eval()

    def build(self, rule: str, factor: float | None, length: int | None = None) -> Task:
        """Build a task that follows a rule at a length, with the weights of the checkpoint."""
        if rule == NONE:
            return self.task
        factors = ((length or self.length) / self.trained,)
        return conditions.build_extended_task(
            self.recipe, self.task, self.weights, rule, factors, factor
        )

    def change_recipe(self, name: str) -> Recipe:
        """Return the recipe of a method that trains; it begins with the checkpoint's weights.

        Methods that rescale rotations train at the new length. Those without positions in some
        layers train at the length that the model knows (arXiv:2512.12167, arXiv:2504.08719).
        """
        rule = name.removesuffix(TRAIN)
        recipe, options = self.recipe, dict(self.recipe.model.options)
        if name == WINDOWS:
            # log-scaled scores past the trained length, section 3 of arXiv:2504.08719
            full = {
                "encoding": (Choice(NONE, {}),),
                "temperature": {"floor": self.trained, "scale": 0.1},
            }
            options["layer_types"] = {"local": {"window": max(1, self.trained // 4)}, "full": full}
            options["layer_pattern"] = (
                ("full", "local*3") if options["depth"] > 3 else ("full", "local")
            )
            recipe = replace(recipe, model=Choice(recipe.model.name, options))
        elif name == HEADS:
            recipe = conditions.append_encoding(recipe, HEAD_SCALE)
        elif rule != NONE:
            recipe = conditions.change_recipe(recipe, self.task.model, rule, self.factors)
        # windows of the new length, in batches of as many tokens
        is_long = rule in (NONE, *RULES, HEAD_SCALE)
        edits: dict[str, Any] = {
            "init_from": str(self.path),
            "optim.lr": self.learning_rate,
            "trainer.max_epochs": None,
            "trainer.max_steps": self.options.steps,
            "trainer.save_every_n_steps": max(1, self.options.steps // 4),
            "diagnostics.every_n_steps": None,
            **dict.fromkeys(("trainer.early_stopping", "trainer.save_top_k", "trainer.profile")),
            **dict.fromkeys(("trainer.val_every_n_steps", "evaluate.lengths", "evaluate.stride")),
            **dict.fromkeys(
                ("evaluate.extrapolation", "evaluate.factors", "evaluate.data_variants")
            ),
        }
        if name == HEADS:
            edits |= {
                "optim.lr": self.options.lr or HEADS_LR,
                "optim.param_groups": [
                    {"match": f"*{HEAD_SCALE}*", "weight_decay": 0.0},
                    {"match": "*", "freeze": True},
                ],
            }
        if is_long:
            sizes = self._choose_sizes(self.length)
            edits |= {f"data.{key}": value for key, value in sizes.items()}
        return from_plain(recipe.plain(), edits, origin=self.recipe.name, name=self.recipe.name)

    def _train(self, recipe: Recipe, run: Path) -> tuple[Task, float]:
        """Train a recipe, or go on with its run.

        Returns:
            The task with the last weights, and the seconds of training.

        Raises:
            Stopped: A signal has come; the checkpoint is saved.
        """
        try:
            result = fit(recipe, run, "auto", is_tested=False)
        except Stopped as stopped:
            message = f"stopped in {run.name}; the same call goes on from its checkpoint in {run}"
            raise Stopped(stopped.code - 128, message) from None
        return restore(run / "checkpoints" / "last.ckpt")[1], 60 * result.minutes

    def _choose_sizes(self, length: int) -> dict[str, Any]:
        """Return options of the data for a length; a batch keeps about its number of tokens."""
        condition = conditions.Condition(str(length), "size", (length,))
        return conditions.choose_data_options(self.recipe, condition)

    def _read(self, split: str, length: int) -> Score:
        """Return the score of the unchanged model, whose counts are those of all methods."""
        return self.score(self.task, split, length)

    @cached_property
    def key_tokens(self) -> Tensor | None:
        """The key tokens of the test windows, bool [W, N]; None without an evaluator.

        The short context is that of `truncate`, at most the trained length.
        """
        if self.evaluator is None:
            return None
        long_loss, is_target, _ = self._compute_losses(self.evaluator, "test", self.length)
        model = self.evaluator.model
        self.evaluator.model = TruncatedContext(model, self.trained)
        short_loss, _, _ = self._compute_losses(self.evaluator, "test", self.length)
        self.evaluator.model = model
        chosen = find_key_tokens(long_loss, short_loss, is_target)
        log.info("%d of %d tokens are key tokens", int(chosen.sum()), int(is_target.sum()))
        return chosen

    def score(self, task: Task, split: str, length: int, key_tokens: Tensor | None = None) -> Score:
        """Compute the losses of a task on all windows of a split, cut to a length."""
        loss, is_target, depths = self._compute_losses(task, split, length)
        return Score(
            loss.sum(1),
            is_target.sum(1),
            _group(loss, is_target),
            depths,
            None if key_tokens is None else compute_long_perplexity(loss, key_tokens),
        )

    @torch.no_grad()
    def _compute_losses(
        self, task: Task, split: str, length: int
    ) -> tuple[Tensor, Tensor, tuple[float | None, ...]]:
        """Return losses and which tokens are targets, both [W, N], and answers by depth."""
        data = self.experiment.data_variant(self._choose_sizes(length))
        adapt_data(task, data)
        data.setup("test" if split == "test" else "fit")
        # a task that was trained comes with dropout
        task = task.to(self.device).eval()
        losses, targets, answers = [], [], []
        loader: Any = data.build_loader(split)
        for batch in loader:
            batch = type(batch)(*(None if one is None else one.to(self.device) for one in batch))
            logits = task.model(*task.inputs(batch))
            losses.append(token_losses(logits, batch.targets).double().cpu())
            targets.append((batch.targets >= 0).cpu())
            if batch.answer_depths is not None:
                right = ((logits.argmax(-1) == batch.targets) | (batch.targets < 0)).all(1)
                answers.append(torch.stack([batch.answer_depths.cpu(), right.cpu().double()]))
        return torch.cat(losses), torch.cat(targets), _group_depths(answers)


def compute_temperature(growth: float, factor: float) -> float:
    """Return the factor of scores at `factor` times the trained length."""
    return 1 + growth * math.log(factor)


def _finite(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf


def _group(loss: Tensor, is_target: Tensor) -> tuple[float, ...]:
    """Return the mean loss of up to POINTS groups of positions; NaN where there is no target."""
    size = -(-loss.shape[1] // POINTS)
    sums, counts = (one.double().sum(0).split(size) for one in (loss, is_target))
    return tuple(float(a.sum() / b.sum()) for a, b in zip(sums, counts, strict=True))


def _group_depths(answers: Sequence[Tensor]) -> tuple[float | None, ...]:
    """Return the share of right answers in each tenth of the text that states them."""
    if not answers:
        return ()
    depth, right = torch.cat([*answers], dim=1)
    tenth = (10 * depth).long().clamp(0, 9)
    return tuple(float(right[tenth == n].mean()) if (tenth == n).any() else None for n in range(10))
