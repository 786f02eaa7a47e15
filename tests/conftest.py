"""Every test starts from the same seed, on one thread, and no warning passes unnoticed but those named here.

What zoo keeps of texts goes to a folder of the tests' own. Work that hundreds of tests repeat with
the same result is done once in a process: reading zoo's own recipes, passing samples through equal
models, and looking up what packages are installed. Fitted regressions and counted operations are
shared by all processes of a test run, those that a test forks included.
"""

from __future__ import annotations

import base64
import copy
import gc
import hashlib
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, wraps
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import torch
from skips import pytest_sessionfinish  # noqa: F401
from torch._inductor import config as inductor
from torch.nn.attention import flex_attention

from zoo.cli import main, worker  # noqa: F401  the import of worker defers packages of torchmetrics
from zoo.config.compose import Composer
from zoo.config.tree import Tree, show_path
from zoo.data import baselines
from zoo.errors import OptionError
from zoo.reporting import charts
from zoo.reporting.style import Chart
from zoo.run import conditions, preflight, run_dir
from zoo.run.build import Experiment
from zoo.run.preflight import IssueCollector

# by torch's compiler
KNOWN = "ignore:<class 'torch.autograd.function.Function'> should not be instantiated:DeprecationWarning"

# Collecting makes a million objects that all stay: to search them again and again takes a third longer.
gc.disable()

# folders whose tests train, start processes or compile
LONG = {"workflows", "formats", "integrations", "run", "comparison"}

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4//8/AAX+Av4N70a4AAAAAElFTkSuQmCC"
)


def render_nothing() -> None:
    """Replace the chart renderer in a forked process: its threads stay behind in the parent."""
    if renderer := sys.modules.get("vl_convert"):
        svg = '<svg viewBox="0 0 1 1"></svg>'
        renderer.vegalite_to_svg = lambda spec: svg  # type: ignore[attr-defined]
        renderer.svg_to_png = lambda svg, scale: PIXEL  # type: ignore[attr-defined]
        renderer.svg_to_pdf = lambda svg: b"%PDF"  # type: ignore[attr-defined]


# without a GPU, torch.manual_seed keeps the stack of each call for devices that may come later
SEED = torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed

HELD: list[logging.Handler] = []


def hold_logs() -> None:
    """Let no thread be writing a log at a fork: the child would wait for the lock of its file for ever."""
    HELD[:] = [handler for known in logging._handlerList if (handler := known()) is not None]  # type: ignore[attr-defined]
    for handler in HELD:
        handler.acquire()


def release_logs() -> None:
    """Let the threads of the parent write again; the child's handlers get new locks from Python."""
    for handler in HELD:
        handler.release()


def pytest_configure(config: pytest.Config) -> None:
    # a shell that starts pytest in the background ignores SIGINT, and Python keeps that
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.register_at_fork(
        before=hold_logs, after_in_parent=release_logs, after_in_child=render_nothing
    )
    torch.set_num_threads(1)
    flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = (
        True  # on a CPU it would trace each call to run it eagerly
    )
    # compile a few kernels in the test's own process, without trials of what the compiler can do
    inductor.compile_threads = 1
    inductor.cpp.vec_isa_ok = True
    config.addinivalue_line("filterwarnings", KNOWN)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with folders of long tests: at the end a worker would be alone with one of them."""
    items.sort(key=lambda item: item.path.parent.name not in LONG)


def pytest_collection_finish() -> None:
    """Exempt modules and collected tests, a few million objects, from later collections, and have few.

    The loggers of torch pass records on: to each logger that does not, pytest adds its two handlers
    three times in each test, which takes half a millisecond for the sixty of torch.
    """
    for name, logger in logging.root.manager.loggerDict.items():
        if name.partition(".")[0] == "torch" and isinstance(logger, logging.Logger):
            logger.propagate = True
    gc.enable()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


class SharedResults:
    """Results by key, which processes of the same test run read from each other's files.

    Args:
        folder: The folder of the files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.results: dict[str, Any] = {}
        # tests replace functions of these modules, and do not mean this class
        self.open, self.rename = open, os.rename

    def look_up(self, key: str, compute: Callable[[], Any]) -> Any:
        """Return the result of a key; the first process that needs it computes it.

        Args:
            key: Text that determines the result.
            compute: Computes the result, which can be pickled.
        """
        name = hashlib.sha256(key.encode()).hexdigest()
        if name not in self.results:
            path = f"{self.folder}/{name}"
            try:
                with self.open(path, "rb") as file:
                    self.results[name] = pickle.load(file)
            except OSError:
                self.results[name] = compute()
                # a test may have filled the disk
                with suppress(OSError):
                    with self.open(f"{path}.{os.getpid()}", "wb") as file:
                        pickle.dump(self.results[name], file)
                    self.rename(f"{path}.{os.getpid()}", path)
        return self.results[name]


@pytest.fixture(scope="session")
def shared_results(tmp_path_factory: pytest.TempPathFactory) -> SharedResults:
    """What the workers of this test run share."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    folder /= "shared_results"
    folder.mkdir(exist_ok=True)
    return SharedResults(folder)


@pytest.fixture(scope="session", autouse=True)
def _metadata_read_once() -> Iterator[None]:
    """Lightning asks for each trainer what every installed package adds to it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lightning.fabric.utilities.registry.entry_points", cache(entry_points))
        yield


@pytest.fixture(scope="session", autouse=True)
def _environment_described_once() -> Iterator[None]:
    """Each run names the versions of packages and the commit of zoo, for which git starts three times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_dir, "version", cache(run_dir.version))
        patch.setattr(run_dir, "_describe_git", cache(run_dir._describe_git))
        yield


@pytest.fixture(scope="session", autouse=True)
def _regressions_fitted_once(shared_results: SharedResults) -> Iterator[None]:
    """Hundreds of tests train on the same digits, and each fits the same softmax regression."""
    fit = baselines._fit_softmax_regression

    def look_up(
        train: tuple[torch.Tensor, torch.Tensor],
        val: tuple[torch.Tensor, torch.Tensor],
        classes: int,
    ) -> baselines.SoftmaxRegression:
        content = b"".join(tensor.numpy().tobytes() for tensor in (*train, *val))
        key = f"regression {classes} {hashlib.sha256(content).hexdigest()}"

        def compute() -> list[Any]:
            return [tensor.numpy() for tensor in vars(fit(train, val, classes)).values()]

        # torch.from_numpy shares the memory, which nothing writes to
        arrays = shared_results.look_up(key, compute)
        return baselines.SoftmaxRegression(*map(torch.as_tensor, arrays))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(baselines, "_fit_softmax_regression", look_up)
        yield


@pytest.fixture(scope="session", autouse=True)
def _compose_recipes_once() -> Iterator[None]:
    """Read and merge the files of a registered recipe for the first test that loads it."""
    root = Path(__file__).parents[1]
    shipped = {path for kind in ("recipes", "configs") for path in (root / kind).rglob("*.yaml")}
    trees: dict[tuple[Path, str], Tree] = {}
    compose = Composer.compose

    def look_up(self: Composer, path: Path, chain: tuple[Path, ...] = ()) -> Tree:
        # messages show a path relative to the working directory
        key = path.resolve(), show_path(path)
        if key[0] not in shipped:
            return compose(self, path, chain)
        if key not in trees:
            trees[key] = compose(self, path, chain)
        tree = trees[key]
        return Tree(copy.deepcopy(tree.data), dict(tree.locations))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Composer, "compose", look_up)
        yield


@pytest.fixture(scope="session", autouse=True)
def _check_models_once(shared_results: SharedResults) -> Iterator[None]:
    """Pass samples through a model on the meta device for the first test that has it."""
    passed: set[tuple[object, ...]] = set()
    counts: dict[tuple[object, ...], int] = {}
    found: dict[tuple[object, ...], list[OptionError]] = {}
    check, check_sizes = preflight._check_model, conditions.check_model
    count = Experiment.flops.func  # type: ignore[attr-defined]

    def describe(experiment: Experiment) -> tuple[Any, ...]:
        # a test may bring modules of its own under a name that another has used
        types = tuple(type(module) for module in experiment.meta_model.modules())
        return repr(experiment.recipe.model), repr(experiment.spec), types

    def check_once(experiment: Experiment, issues: IssueCollector, *, is_trained: bool) -> bool:
        try:
            key = describe(experiment)
        except Exception:  # the model cannot be built, which the check reports
            return check(experiment, issues, is_trained=is_trained)
        if key not in passed:
            if is_built := check(experiment, issues, is_trained=is_trained):
                passed.add(key)
            return is_built
        model = experiment.meta_model
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(vars(model), "forward", wraps(model.forward)(lambda *inputs: None))
            return check(experiment, issues, is_trained=is_trained)

    def count_once(experiment: Experiment) -> int:
        key = describe(experiment)
        if key not in counts:
            text = repr(key)
            # an address, and a class of a test, mean something in this process only
            is_shared = " at 0x" not in text and all(
                type_.__module__.startswith(("zoo.", "torch.")) for type_ in key[-1]
            )
            counts[key] = (
                shared_results.look_up(f"operations {text}", lambda: count(experiment))
                if is_shared
                else count(experiment)
            )
        return counts[key]

    def check_sizes_once(experiment: Experiment) -> Iterator[OptionError]:
        key = *describe(experiment), repr(experiment.recipe.evaluate)
        if key not in found:
            found[key] = [*check_sizes(experiment)]
        yield from found[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preflight, "_check_model", check_once)
        patch.setattr(Experiment, "flops", property(count_once))
        patch.setattr(conditions, "check_model", check_sizes_once)
        yield


EXAMINED: dict[tuple[Any, ...], Any] = {}
"""What is found in a model of transformers, and proved about it, by its classes and configuration."""


@pytest.fixture(scope="module")
def equal_models_examined_once() -> Iterator[None]:
    """Examine the first model of a class and configuration, and take the others for equal to it.

    For modules that equip many equal models. Tests that change a model, and those of the proof
    itself, do without.
    """
    module = pytest.importorskip("zoo.integrations.transformers_models")
    adapter = module.TransformersAdapter
    find, prove_anew = module.find_structure, adapter._prove
    try_anew = adapter._with_own_positions

    def describe(model: torch.nn.Module) -> tuple[Any, ...]:
        weight = next(model.parameters())
        types = tuple(type(part) for part in model.modules())
        return types, model.config.to_json_string(use_diff=False), weight.dtype, weight.device  # type: ignore[operator, union-attr]

    def find_once(model: torch.nn.Module) -> Any:
        key = ("structure", *describe(model))
        if key not in EXAMINED:
            EXAMINED[key] = find(model)
        return EXAMINED[key]

    def prove(self: Any, equipment: Any, surgery: Any) -> list[str]:
        key = ("proof", *describe(self.model))
        if equipment is None:
            self.unproved = EXAMINED[key]
            return []
        removed = prove_anew(self, equipment, surgery)
        EXAMINED[key] = self.unproved
        return removed

    @contextmanager
    def try_own_positions(self: Any) -> Iterator[tuple[Any, Any]]:
        if ("proof", *describe(self.model)) in EXAMINED:
            yield None, None
            return
        with try_anew(self) as made:
            yield made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "find_structure", find_once)
        patch.setattr(adapter, "_prove", prove)
        patch.setattr(adapter, "_with_own_positions", try_own_positions)
        yield


@pytest.fixture(scope="session", autouse=True)
def _draw_small_pictures() -> Iterator[None]:
    """Give the PNG files of evaluations and comparisons a quarter of their width and height."""

    def render_formats(chart: Chart) -> dict[str, bytes]:
        svg = charts.to_svg(chart)
        return {suffix: charts._encode(svg, suffix, 0.5) for suffix in charts.FORMATS}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(charts, "render_formats", render_formats)
        yield


@pytest.fixture(autouse=True)
def _seed() -> None:
    SEED(0)
    # commands in the test's own process flush denormal numbers to zero
    torch.set_flush_denormal(False)


@pytest.fixture
def zoo(capsys, tmp_path, monkeypatch):
    """zoo(*arguments) -> (exit code, standard output, standard error), in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZOO_PLUGINS", "")  # what --plugin sets is gone after the test

    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def predict_json(zoo):
    """What `zoo predict` prints as JSON."""

    def run(*arguments):
        code, out, message = zoo("predict", *arguments, "--json")
        assert code == 0, message
        return json.loads(out)

    return run


@pytest.fixture
def weights():
    """Reads the weights of a checkpoint file."""
    return lambda path: torch.load(path, weights_only=True)["state_dict"]


@pytest.fixture
def process(tmp_path):
    """Starts `python -m zoo` in an empty folder."""

    def start(*arguments, **more):
        return subprocess.Popen(
            [sys.executable, "-m", "zoo", *map(str, arguments)],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **more,
        )

    return start
