"""Draw recipes that are right by type, and use whatever passes the checks to the end.

    python tests/benchmarks/recipes.py [count] [first] [1]

Values are drawn from the descriptions of all options, of models, encodings, data, tasks, optimizers
and the other sections, except those in `FIXED`, which say where and how large a run is. A recipe is
refused by the checks, or it is trained for two steps, tested, also at another size, continues a text
if it can, and is loaded and exported. Each of these works; no future token changes the past; a cache
gives what one pass gives; what was saved computes the same once it is loaded. A recipe depends only
on its number. `count` recipes are trained; each fault has a line, with a 1 every
recipe, and the last line counts.
"""

import dataclasses
import json
import logging
import os
import random
import sys
import tempfile
import traceback
import types
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import torch

import zoo
from zoo import config
from zoo.attention.kv_cache import KeyValueCache
from zoo.config.schema import Sections
from zoo.errors import NonFiniteError, OptionError, RecipeError, ZooError
from zoo.options import Between, Choice, Choices
from zoo.options.signature import Option, extras, fields, read_options
from zoo.registry import names
from zoo.run import fit as training
from zoo.run.load import build_stored_model

TOLERANCE = 1e-8  # of numbers in float64, relative to the largest
ROUNDING = 1e-3  # of metrics in the precision of training
LETTERS = "".join(random.Random(0).choices("abcdefgh \n", k=4000))
FEW = {"train": 16, "val": 8, "test": 8, "batch_size": 4}
TEXTS = {
    "text": {"files": ["text.txt"], "length": 16, "batch_size": 8},
    "flipflop": {**FEW, "length": 16},
    "copying": {**FEW, "symbols": 6},
    "parity": {**FEW, "bits": 6},
    "counting": {**FEW, "steps": 8},
    "addition": {**FEW, "digits": 2},
}
LABELLED = {"marker_offset": {**FEW, "length": 16}}
PICTURES = {
    "digits": {"batch_size": 16, "val": 0.02, "test": 0.02},
    "moving_digits": {**FEW, "frames": 2, "size": 16},
}
TASKS = (
    ("decoder", "causal_lm", TEXTS),
    ("encoder", "masked_lm", TEXTS),
    ("encoder", "classification", LABELLED),
    ("vit", "classification", PICTURES),
)
# Where a run happens and how large it is: no description tells what is small.
FIXED = frozenset(
    [
        "model.dim",
        "model.depth",
        "model.heads",
        "model.patch_size",
        "model.backend",
        "data.files",
        "data.tokenizer",
        "data.length",
        "data.batch_size",
        "data.train",
        "data.val",
        "data.test",
        "data.workers",
        "data.symbols",
        "data.bits",
        "data.steps",
        "data.digits",
        "data.frames",
        "data.size",
        "data.side",
        "data.least",
        "trainer.accelerator",
        "trainer.devices",
        "trainer.num_nodes",
        "trainer.strategy",
        "trainer.max_epochs",
        "trainer.max_steps",
        "trainer.logger",
        "trainer.callbacks",
        "trainer.compile",
        "trainer.num_threads",
        "trainer.async_checkpoint",
        "trainer.fast_dev_run",
        "evaluate.lengths",
        "evaluate.resolutions",
        "evaluate.data_variants",
        "evaluate.extrapolation",
        "generate.prompt",
        "generate.tokens",
        "generate.samples",
        "generate.stop",
        "init_from",
    ]
)
# How likely another value than the default is, by section.
SHARES = {"model": 0.1, "data": 0.1, "task": 0.15, "optim": 0.1, "trainer": 0.07}
AXES = {"text": 1, "digits": 2, "moving_digits": 3}  # of a model, by its data; texts have one
MISSING = object()


class Draw:
    """Draws values of options from their annotations, the same for the same number."""

    def __init__(self, number: int) -> None:
        self.random = random.Random(f"recipe {number}")
        self.axes, self.causal = 1, False  # of the model

    def choose(self, values: Any) -> Any:
        """Return one of several values."""
        return self.random.choice(list(values))

    def draw_options(
        self, options: Mapping[str, Option], key: str, share: float, given: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return given options, and other values of some that are not fixed."""
        drawn = dict(given)
        for name, option in options.items():
            below = f"{key}.{name}"
            is_free = name not in given and below not in FIXED
            if is_free and (option.is_required or self.random.random() < share):
                value = self.draw_value(option.annotation, below)
                if value is not MISSING:
                    drawn[name] = value
        return drawn

    def draw_value(self, annotation: Any, key: str, bounds: Between | None = None) -> Any:
        """Return a value of an annotation; MISSING where it says too little."""
        origin, arguments = get_origin(annotation), get_args(annotation)
        if origin is Annotated:
            return self._draw_marked(arguments[0], arguments[1:], key)
        if origin is Literal:
            return self.choose(arguments)
        if origin in (Union, types.UnionType):
            return self.draw_value(self.choose(arguments), key)
        if annotation is bool:
            return self.choose([False, True])
        if annotation is int:
            return self._draw_number([0, 1, 2, 3, 4, 6, 8, 16, 20], bounds)
        if annotation is float:
            numbers = [0.0, 0.01, 0.1, 0.3, 0.5, 0.9, 1.0, 1.5, 2.0, 10.0, 100.0]
            return self._draw_number(numbers, bounds)
        if annotation is type(None):
            return None
        if origin is tuple and arguments[-1] is not Ellipsis:
            values = [self.draw_value(one, key) for one in arguments]
            return MISSING if MISSING in values else values
        if origin is tuple:
            value = self.draw_value(arguments[0], key)
            return MISSING if value is MISSING else [value]
        if dataclasses.is_dataclass(annotation):
            drawn = self.draw_options(fields(annotation), key, 0.4, {})
            required = {name for name, one in fields(annotation).items() if one.is_required}
            return drawn if required <= drawn.keys() else MISSING
        return MISSING

    def _draw_number(self, numbers: list[Any], bounds: Between | None) -> Any:
        if bounds is None:
            return self.choose(numbers)
        own = [one for one in numbers if bounds.low <= one <= bounds.high]
        return self.choose([*own, type(numbers[0])(bounds.low)])

    def _draw_marked(self, inner: Any, marks: tuple[Any, ...], key: str) -> Any:
        bounds = None
        for mark in marks:
            if isinstance(mark, Choices):
                return self._draw_members(mark, inner is Choice, key)
            if isinstance(mark, Between):
                bounds = mark
        return self.draw_value(inner, key, bounds)

    def _draw_members(self, mark: Choices, is_single: bool, key: str) -> Any:
        count = 1 if is_single or self.random.random() < 0.85 else 2
        known = [name for name in names(mark.kind) if self.fits(mark.kind, name)]
        chosen = self.random.sample(known, min(count, len(known)))
        members = [self.draw_member(mark.kind, name, key, 0.3) for name in chosen]
        return members[0] if is_single else members

    def fits(self, kind: str, name: str) -> bool:
        """Return whether the declared facts of an encoding let it into the model."""
        if kind != "encodings":
            return True
        cls = zoo.encoding_class(name)
        return self.axes in cls.axes and (self.causal or not cls.causal_only)

    def draw_member(
        self, kind: str, name: str, key: str, share: float, **given: Any
    ) -> dict[str, Any]:
        """Return a member of a kind with some of its options."""
        drawn = self.draw_options(read_options(kind, name), key, share, given)
        # that of data takes the place of another option
        common = {} if kind == "data" else self.draw_options(extras(kind), key, 0.1, {})
        return {"name": name, **drawn, **common}


def draw_recipe(number: int) -> dict[str, Any]:
    """Draw the sections of a recipe."""
    draw = Draw(number)
    model, task, sources = TASKS[number % len(TASKS)]
    source = draw.choose(sources)
    draw.axes, draw.causal = AXES.get(source, 1), model == "decoder"
    sizes = {"dim": 16, "depth": draw.choose([1, 2]), "heads": draw.choose([1, 2, 4])}
    if model == "vit":
        sizes["patch_size"] = 4
    options = {
        key: draw.draw_member(kind, name, key, SHARES[key], **given)
        for key, kind, name, given in (
            ("model", "models", model, sizes),
            ("data", "data", source, sources[source]),
            ("task", "tasks", task, {}),
            ("optim", "optim", draw.choose(names("optim")), {"lr": draw.choose([1e-3, 1e-2])}),
        )
    }
    if options["model"].get("memory_length") and "streams" in read_options("data", source):
        options["data"]["streams"] = True
    sections = fields(Sections)
    limits = {"max_steps": 2, "max_epochs": None, "accelerator": "cpu", "logger": []}
    trainer = draw.draw_options(
        fields(sections["trainer"].annotation), "trainer", SHARES["trainer"], limits
    )
    others = {
        key: draw.draw_options(fields(sections[key].annotation), key, share, given)
        for key, share, given in (
            ("diagnostics", 0.2, {"every_n_steps": draw.choose([1, None, None])}),
            ("evaluate", 0.1, {}),
            ("generate", 0.2, {"tokens": 4}),
        )
    }
    return {"seed": number, **options, "trainer": trainer, **others}


def describe(recipe: Mapping[str, Any]) -> str:
    """Write a recipe on a line."""
    return json.dumps(recipe, sort_keys=True)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a recipe.

    Attributes:
        kind: trained, refused, diverged, or a fault.
        text: The message, or what was wrong.
    """

    kind: str
    text: str = ""

    @property
    def is_fault(self) -> bool:
        """Whether zoo is wrong."""
        return self.kind not in ("trained", "refused", "diverged")


class FaultError(Exception):
    """Something that a recipe was promised does not hold."""


def compare(what: str, found: torch.Tensor, right: torch.Tensor, tolerance: float) -> None:
    """Raise FaultError where two tensors differ."""
    found, right = found.detach(), right.detach()
    gap = float((found - right).abs().max() / (1 + right.abs().max()))
    if not gap <= tolerance:
        raise FaultError(f"{what} differs by {gap:.0e}")


@torch.no_grad()
def check_decoder(model: Any, count: int, length: int = 16) -> None:
    """Check that the future changes nothing, and that a cache gives what one pass gives."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(count, (2, length), generator=draw)
    right = model(ids)
    if not right.isfinite().all():
        return
    changed = ids.clone()
    past = length // 2
    changed[:, past:] = torch.randint(count, (2, length - past), generator=draw)
    compare("the past of another future", model(changed)[:, :past], right[:, :past], TOLERANCE)
    cache = KeyValueCache()
    parts = [
        model(part, context=cache) for part in ids.split([past - 1, 1, 1, length - past - 1], dim=1)
    ]
    compare("decoding with a cache", torch.cat(parts, dim=1), right, TOLERANCE)


@torch.no_grad()
def check_export(run: Path, model: Any, inputs: torch.Tensor, number: int) -> None:
    """Check that exported weights compute the same; every fiftieth recipe is captured as a graph."""
    from safetensors.torch import load_file

    folder = run.parent / f"{run.name}-hf"
    zoo.export(run, folder, to="safetensors" if number % 2 else "hf", verbose=False)
    weights = load_file(folder / "model.safetensors")
    own = {key.removeprefix("model."): value for key, value in weights.items()}
    missing = [key for key in model.state_dict() if key not in own]
    if missing:
        raise FaultError(f"an export lacks {missing[0]}")
    if number % 2 == 0:
        metadata = json.loads((folder / "config.json").read_text())["zoo"]
        built = build_stored_model(metadata, folder / "config.json").eval()
        built.load_state_dict(own)
        compare("an exported model", built.double()(inputs), model(inputs), TOLERANCE)
    if number % 50 == 0:
        try:
            zoo.export(run, run.parent / f"{run.name}-graph", to="torch_export", verbose=False)
        except RecipeError:  # what cannot be captured is refused by name
            return


def inputs_dtype(model: Any) -> torch.dtype:
    """Return the dtype of a model."""
    return next(model.parameters()).dtype


def use_run(run: Path, result: Any, number: int) -> None:
    """Test, continue, load and export a run."""
    size = {"evaluate.resolutions": [24]} if number % 4 == 3 else {"evaluate.lengths": [24]}
    task = zoo.load(run)
    try:
        evaluation = zoo.evaluate(run, size, verbose=False)
    except RecipeError:  # data of one size
        evaluation = zoo.evaluate(run, verbose=False)
    measured = evaluation.conditions[0].metrics  # with what an evaluation alone measures
    for key, right in result.metrics.items():
        value = measured.get(key)
        if value is None:
            raise FaultError(f"an evaluation lacks {key}")
        is_equal = value == right or abs(value - right) <= ROUNDING * (1 + abs(right))
        if not is_equal and value == value:
            raise FaultError(f"{key} was {right} and is {value} once loaded")

    model, spec = task.model.eval().double(), task.spec
    if number % 4 == 0:
        zoo.generate(run, spec.vocabulary.decode([1]), verbose=False)
        check_decoder(model, len(spec.vocabulary), spec.length)
    (sample,) = spec.build_inputs()
    sample = sample.double() if sample.is_floating_point() else sample
    compare("a second pass", model(sample), model(sample), 0.0)
    check_export(run, model, sample, number)


def try_recipe(number: int, folder: Path) -> Outcome:
    """Say what becomes of a recipe. It runs in `folder`, which has text.txt."""
    plain, started = draw_recipe(number), []
    run = folder / str(number)
    try:
        recipe = config.from_plain(plain, origin=f"recipe {number}", name="drawn")
        result = training.fit(recipe, run, started=started.append)
        use_run(run, result, number)
    except NonFiniteError as error:
        return Outcome("diverged", str(error))
    except RecipeError as error:
        return Outcome("late" if started else "refused", str(error))
    except FaultError as error:
        return Outcome("different", str(error))
    except (ZooError, OptionError) as error:
        return Outcome("late", f"{type(error).__name__}: {error}")
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        return Outcome("crashed", f"{type(error).__name__} at {where}: {error}"[:300])
    finally:
        torch.use_deterministic_algorithms(False)
    return Outcome("trained")


def write_text(folder: Path) -> None:
    """Write the text that recipes read from the folder they run in."""
    (folder / "text.txt").write_text(LETTERS)


def prepare(folder: Path) -> None:
    """Run in a folder where recipes find their text, with little output."""
    write_text(folder)
    os.chdir(folder)
    warnings.simplefilter("ignore")
    logging.getLogger("zoo").setLevel(logging.ERROR)


def main(count: int = 400, first: int = 0, is_long: int = 0) -> int:
    """Train so many recipes, print faults and counts, and return the number of faults."""
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    number = first
    with tempfile.TemporaryDirectory() as home:
        prepare(Path(home))
        while counts["trained"] < count:
            outcome = try_recipe(number, Path(home))
            counts[outcome.kind] += 1
            if outcome.is_fault:
                print(f"{number} {outcome.kind}: {outcome.text}", flush=True)
                print(f"    {describe(draw_recipe(number))}", flush=True)
            elif is_long:
                print(number, outcome.kind, outcome.text[:300], flush=True)
            number += 1
        os.chdir("/")
    shown = ", ".join(f"{kind}: {amount}" for kind, amount in sorted(counts.items()))
    print(f"recipes {first} to {number - 1}: {shown}")
    return sum(amount for kind, amount in counts.items() if Outcome(kind).is_fault)


if __name__ == "__main__":
    from arguments import make_parser, positive

    parser = make_parser(__doc__)
    parser.add_argument("count", nargs="?", type=positive, default=400)
    parser.add_argument("first", nargs="?", type=int, default=0)
    parser.add_argument("is_long", nargs="?", type=int, choices=(0, 1), default=0, metavar="1")
    known = parser.parse_args()
    sys.exit(bool(main(known.count, known.first, known.is_long)))
