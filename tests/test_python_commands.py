"""The Python functions do what the commands do, with their numbers and errors, and leave no trace."""

import inspect
import json
import logging
import os
import random
import signal
import threading
import warnings
from pathlib import Path

import lightning as L
import numpy as np
import pytest
import torch
from PIL import Image
from tiny import TINY, language
from torch.utils.data import DataLoader, Dataset, TensorDataset
from untrained import write_checkpoint

import zoo as package
from zoo.cli.edge import COMMAND_LINE
from zoo.config.command_line import format_edits, parse_overrides
from zoo.config.overrides import Change, Removal, list_edits
from zoo.data.corpus.tokenizer import Bytes

SPEC = package.ImageSpec(1, 8, 8, classes=3, names=("a", "b", "c"))
SMALL = {
    "model": {"dim": 16, "depth": 1, "heads": 2, "patch_size": 4, "encoding": ["rope_axial"]},
    "data.test": 0.4,
    "data.val": 0.4,
    "data.batch_size": 64,
    "trainer.max_epochs": 1,
    "trainer.accelerator": "cpu",
}
OWN = {
    "model": {"dim": 16, "depth": 1, "heads": 2, "patch_size": 4, "encoding": "rope_axial"},
    "data.batch_size": 8,
    "trainer.max_epochs": 2,
    "trainer.accelerator": "cpu",
    "evaluate.resolutions": None,
}


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def make_images(count):
    generator = torch.Generator().manual_seed(count)
    return TensorDataset(
        torch.randn(count, 1, 8, 8, generator=generator),
        torch.randint(3, (count,), generator=generator),
    )


@pytest.fixture
def data():
    return {"train": make_images(40), "val": make_images(12), "test": make_images(16)}


def describe_process():
    """What a caller would notice if it changed."""
    loggers = ("", "zoo", "lightning.pytorch", "lightning.fabric")
    return {
        "threads": torch.get_num_threads(),
        "dtype": torch.get_default_dtype(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "torch": torch.get_rng_state().tolist(),
        "numpy": np.random.get_state()[1].tolist(),
        "python": random.getstate(),
        "warnings": list(warnings.filters),
        "signals": [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)],
        "environment": dict(os.environ),
        "loggers": {
            name: (one.level, one.propagate, list(one.handlers))
            for name, one in ((name, logging.getLogger(name)) for name in loggers)
        },
    }


@pytest.fixture
def _two_threads():
    """Let a test set two threads, of which runs use one, so that no idle thread of a run spins."""
    yield
    torch.set_num_threads(1)


@pytest.mark.usefixtures("_two_threads")
def test_fit_and_evaluate_give_the_numbers_of_the_command_line_and_change_nothing(zoo, capsys):
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        os.environ.pop(name, None)
    code, out, _ = zoo("fit", "vit_comrope", *TINY, "trainer.num_threads=1", "--json")
    assert code == 0
    expected = json.loads(out)
    _, out, _ = zoo("eval", expected["run"], "evaluate.resolutions=[8,24]", "--json")
    torch.set_num_threads(2)

    package.load(expected["run"])  # what is imported at first use
    before = describe_process()
    runs = [
        package.fit("vit_comrope", {**SMALL, "trainer.num_threads": 1, "trainer.deterministic": d})
        for d in (False, False, True)
    ]
    assert describe_process() == before
    assert [run.metrics for run in runs] == 3 * [expected["metrics"]]
    assert "Test metrics" in capsys.readouterr().err
    assert "Test metrics" in (runs[0].path / "train.log").read_text()

    found = package.evaluate(expected["run"], resolutions=[8, 24])
    assert describe_process() == before
    assert found.to_dict() == json.loads(out)
    assert package.evaluate(runs[1], resolutions=[8, 24]).conditions == found.conditions


def test_a_run_knows_its_recipe_history_and_model():
    run = package.fit("vit_comrope", SMALL, run_dir="one", verbose=False)
    assert run.recipe.name == "vit_comrope"
    assert run.recipe.model.options["dim"] == 16
    history = run.history()
    assert history[-1]["test/loss"] == run.metrics["test/loss"]
    assert isinstance(history[-1]["step"], int)
    assert run.frame()["test/loss"].iloc[-1] == run.metrics["test/loss"]
    assert not run.stopped
    assert run.model(torch.zeros(2, 1, 16, 16)).shape == (2, 10)
    assert f"{run.metrics['test/loss']:.4f}" in run._repr_html_()
    assert package.Run("one").metrics == run.metrics
    with pytest.raises(package.DataError, match="not a run directory"):
        package.Run("two")


def test_verbose_false_prints_nothing(capfd):
    package.fit("vit_comrope", SMALL, verbose=False)
    assert capfd.readouterr() == ("", "")


def test_a_recipe_object_trains_with_changes():
    recipe = package.load_recipe("vit_comrope", SMALL)
    run = package.fit(recipe, {"seed": 3}, verbose=False)
    assert (run.recipe.seed, run.recipe.name) == (3, "vit_comrope")
    assert run.recipe.hash == package.load_recipe("vit_comrope", {**SMALL, "seed": 3}).hash


def test_errors_are_those_of_the_command_line(zoo):
    wrong = {"model.depht": 8, "model.encoding": "comrope_lt", "optim.lr": "fast"}
    _, _, told = zoo("fit", "vit_comrope", *(f"{key}={value}" for key, value in wrong.items()))
    with pytest.raises(package.RecipeError) as caught:
        package.fit("vit_comrope", wrong)
    assert f"zoo: {caught.value.spell(COMMAND_LINE)}\n" == told

    for call, word in (
        (package.evaluate, "eval"),
        (package.diagnose, "diagnose"),
        (package.atlas, "atlas"),
    ):
        _, _, told = zoo(word, "nowhere")
        with pytest.raises(package.CheckpointError) as caught:
            call("nowhere")
        assert f"zoo: {caught.value.spell(COMMAND_LINE)}\n" == told
    with pytest.raises(package.RecipeError, match=r"model.dim: not plain data but object"):
        package.fit("vit_comrope", {"model.dim": object()})


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("1e-3", '"1e-3"'),
        (1e-7, "1e-07"),
        (float("inf"), ".inf"),
        (np.int64(3), "3"),
        (np.float32(0.5), "0.5"),
        (None, "null"),
        (True, "true"),
        ((1, "a b"), '[1, "a b"]'),
        ({"name": "liere", "block": 4}, '{"name": "liere", "block": 4}'),
    ],
)
def test_values_keep_their_types(value, word):
    """Python's values reach other processes as words, which read back as the same values."""
    edits = list_edits({"a.b": value})
    assert parse_overrides(format_edits(edits)) == edits == parse_overrides([f"a.b={word}"])


TAKE_OVERRIDES = {
    "fit": lambda run, edits: package.fit("vit_none", edits, verbose=False),
    "evaluate": lambda run, edits: package.evaluate(run, edits, verbose=False),
    "predict": lambda run, edits: package.predict(run, "picture.png", edits),
    "generate": lambda run, edits: package.generate(run, "a", edits),
    "diagnose": lambda run, edits: package.diagnose(run, edits, verbose=False),
    "atlas": lambda run, edits: package.atlas(run, edits, verbose=False),
    "extend": lambda run, edits: package.extend(run, edits, verbose=False),
    "compare": lambda run, edits: package.compare("vit_none", edits, encodings=["none"]),
    "estimate_comparison": lambda run, edits: package.estimate_comparison(
        "vit_none", edits, encodings=["none"]
    ),
    "compare_suite": lambda run, edits: package.compare_suite(
        "small", edits, encodings=["none"], parts=["counting"]
    ),
    "estimate_suite": lambda run, edits: package.estimate_suite(
        "small", edits, encodings=["none"], parts=["counting"]
    ),
    "export": lambda run, edits: package.export(run, "out", "safetensors", edits),
    "convert": lambda run, edits: package.convert("published", edits),
    "load": lambda run, edits: package.load(run, edits),
    "load_recipe": lambda run, edits: package.load_recipe("vit_none", edits),
}


def test_every_function_with_overrides_is_listed():
    functions = {name: getattr(package, name) for name in package.__all__}
    found = {
        name
        for name, one in functions.items()
        if inspect.isfunction(one) and "overrides" in inspect.signature(one).parameters
    }
    assert found == TAKE_OVERRIDES.keys()


@pytest.mark.parametrize("name", [name for name in TAKE_OVERRIDES if name != "convert"])
@pytest.mark.parametrize(
    ("edits", "remedy"),
    [
        (["seed=1"], '{"seed": 1}'),
        (["model.encoding=rope"], '{"model.encoding": "rope"}'),
        (["~seed"], "Removal('seed')"),
        ("seed=1", '{"seed": 1}'),
    ],
)
def test_strings_are_no_overrides_in_python(name, edits, remedy):
    write_checkpoint(Path("run"), "vit_none", ["model.depth=1"])
    with pytest.raises(package.RecipeError) as caught:
        TAKE_OVERRIDES[name](Path("run"), edits)
    assert remedy in str(caught.value)


@pytest.mark.parametrize("name", [name for name in TAKE_OVERRIDES if name != "convert"])
def test_edits_are_overrides_everywhere(name):
    """An edit of an unknown key is read as one, and refused with the key's own message."""
    write_checkpoint(Path("run"), "vit_none", ["model.depth=1"])
    with pytest.raises(package.RecipeError, match=r"model\.depht: unknown key"):
        TAKE_OVERRIDES[name](Path("run"), [Change("model.depht", 2)])
    with pytest.raises(package.RecipeError, match=r"seeed: cannot be removed"):
        TAKE_OVERRIDES[name](Path("run"), [Removal("seeed")])


def test_a_thread_fits_with_the_same_numbers():
    found = []
    arguments = ("vit_comrope", SMALL)
    thread = threading.Thread(target=lambda: found.append(package.fit(*arguments, verbose=False)))
    thread.start()
    thread.join()
    assert found[0].metrics == package.fit(*arguments, verbose=False).metrics


class Interrupting(Dataset):
    """Images that interrupt the process when some of them are read.

    All are read once to count their classes, before the first epoch.
    """

    def __init__(self, images, at, interrupt):
        self.images, self.at, self.interrupt = images, at, interrupt
        self.count = 0

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        self.count += 1
        if self.count == self.at:
            self.interrupt()
        return self.images[index]


def test_an_interrupted_fit_is_saved_returned_and_resumed(data):
    whole = package.fit("vit_comrope", OWN, data=data, spec=SPEC, verbose=False)
    before = signal.getsignal(signal.SIGINT)
    train = Interrupting(data["train"], 95, lambda: signal.raise_signal(signal.SIGINT))
    run = package.fit("vit_comrope", OWN, data={**data, "train": train}, spec=SPEC)
    assert run.stopped
    assert run.metrics == {}
    assert "stopped" in run._repr_html_()
    assert signal.getsignal(signal.SIGINT) is before
    assert run.task.training is False

    again = {**data, "train": Interrupting(data["train"], 0, None)}
    run = package.fit("vit_comrope", OWN, data=again, spec=SPEC, run_dir=run.path, resume="auto")
    assert not run.stopped
    assert run.metrics == whole.metrics


def test_an_interrupt_that_no_handler_sees_returns_the_run(data):
    def interrupt():
        raise KeyboardInterrupt

    train = Interrupting(data["train"], 110, interrupt)
    before = signal.getsignal(signal.SIGINT)
    run = package.fit("vit_comrope", OWN, data={**data, "train": train}, spec=SPEC, verbose=False)
    assert run.stopped
    assert signal.getsignal(signal.SIGINT) is before
    assert (run.path / "checkpoints" / "last.ckpt").exists()  # of the epoch before


def test_own_datasets_train_test_and_predict(data, zoo):
    changes = {**OWN, "evaluate.resolutions": [16]}
    run = package.fit("vit_comrope", changes, data=data, spec=SPEC, verbose=False)
    assert run.recipe.data.name == "torch_dataset"
    assert "train TensorDataset 40" in run.recipe.yaml()
    found = package.evaluate(run, data={"test": data["test"]}, verbose=False)
    assert found.metrics == run.metrics
    assert found.count == 16
    assert "test/loss" in found.find("16").metrics

    for words in (["eval", run.path], ["fit", run.path / "recipe.yaml"]):
        code, _, told = zoo(*words)
        assert code == 4
        assert "pass them again in Python" in told

    images, labels = data["test"].tensors
    with torch.no_grad():
        logits = run.model(images)
    assert (logits.argmax(1) == labels).float().mean() == run.metrics["test/accuracy"]
    predicted = run.task.predict(images)
    assert [SPEC.names.index(one["label"]) for one in predicted] == logits.argmax(1).tolist()
    assert predicted[0]["probability"] == pytest.approx(float(logits[0].softmax(0).max()))


def test_a_pair_of_datasets_and_a_data_module_give_the_same(data):
    class Module(L.LightningDataModule):
        spec = SPEC

        def train_dataloader(self):
            return DataLoader(data["train"], batch_size=3)

        def val_dataloader(self):
            return DataLoader(data["val"])

        def test_dataloader(self):
            return DataLoader(data["val"])

    pair = (data["train"], data["val"])
    one = package.fit("vit_comrope", OWN, data=pair, spec=SPEC, verbose=False)
    other = package.fit("vit_comrope", OWN, data=Module(), verbose=False)
    assert one.metrics == other.metrics


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"train": TensorDataset(torch.zeros(9, 1, 9, 8), torch.zeros(9))}, "shape .1, 9, 8., not"),
        (
            {"val": TensorDataset(torch.zeros(9, 1, 8, 8), torch.full((9,), 3))},
            "label 3, but there are 3",
        ),
        ({"test": TensorDataset(torch.zeros(9, 1, 8, 8).byte(), torch.zeros(9))}, "not floating"),
        ({"test": TensorDataset(torch.zeros(0, 1, 8, 8), torch.zeros(0))}, "empty"),
        ({"test": (image for image in ())}, "a stream has none"),
    ],
)
def test_datasets_that_do_not_fit_are_refused(changes, text, data):
    with pytest.raises(package.DataError, match=text):
        package.fit("vit_comrope", OWN, data={**data, **changes}, spec=SPEC, verbose=False)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"data": {"training": []}, "spec": SPEC}, "unknown split training"),
        ({"data": 3}, "expected datasets by split"),
        ({"spec": SPEC}, "`spec` requires `data`"),
    ],
)
def test_arguments_that_are_no_data_are_refused(given, text):
    with pytest.raises(package.RecipeError, match=text):
        package.fit("vit_comrope", OWN, **given)


def test_data_and_a_name_of_data_are_refused_together(data):
    with pytest.raises(package.RecipeError, match=r"leave data.name or the datasets out"):
        package.fit("vit_comrope", {**OWN, "data": "digits"}, data=data, spec=SPEC)


def test_datasets_without_a_spec_are_refused(data):
    with pytest.raises(package.DataError, match="without a spec"):
        package.fit("vit_comrope", OWN, data=data)


def test_windows_of_tokens_train_a_language_model():
    windows = torch.randint(97, 100, (40, 13), generator=torch.Generator().manual_seed(0))
    options = {"model": {"dim": 16, "depth": 1, "heads": 2}, "trainer.accelerator": "cpu"}
    options |= {"trainer.max_steps": 3, "data.batch_size": 8, "evaluate": {"lengths": None}}
    data = {"train": windows, "val": windows[:8], "test": windows[:8]}
    spec = package.TextSpec(12, Bytes())
    run = package.fit("lm_rope", options, data=data, spec=spec, verbose=False)
    batch = windows[:8]
    with torch.no_grad():
        logits = run.model(batch[:, :-1])
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    assert run.metrics["test/loss"] == pytest.approx(float(loss), rel=1e-5)
    assert len(run.task.generate("abc", tokens=5, temperature=0)) == 5


def test_texts_of_different_lengths_are_classified():
    texts = [(torch.randint(97, 100, (4 + number % 5,)), number % 2) for number in range(24)]
    options = {"model": {"dim": 16, "depth": 1, "heads": 2}, "trainer.accelerator": "cpu"}
    options |= {"trainer.max_epochs": 1, "data.batch_size": 8}
    spec = package.TextClassificationSpec(8, Bytes(), 2, ("odd", "even"))
    run = package.fit(
        "mlm_sinusoidal",
        {**options, "task": "classification"},
        data=(texts, texts[:8]),
        spec=spec,
        verbose=False,
    )
    assert 0 <= run.metrics["test/accuracy"] <= 1


def test_a_loaded_model_predicts_for_pictures_files_and_tensors(predict_json):
    run = package.fit("vit_comrope", SMALL, verbose=False)
    rows = np.random.default_rng(0).integers(0, 255, (2, 20, 20)).astype("u1")
    pictures = [Image.fromarray(row) for row in rows]
    for number, picture in enumerate(pictures):
        picture.save(f"{number}.png")
    expected = predict_json(run.path, "0.png", "1.png", "top=2")["predictions"]

    model = package.load(run)
    assert model.predict(["0.png", "1.png"], top=2) == expected
    assert [*package.predict(run, ["0.png", "1.png"], top=2).predictions] == expected
    found = model.predict(pictures, top=2)
    assert found == [{key: one[key] for key in ("label", "probability", "top")} for one in expected]
    assert len(model.predict(torch.zeros(1, 16, 16))) == 1
    with pytest.raises(package.DataError, match=r"nowhere.png"):
        model.predict("nowhere.png")
    with pytest.raises(package.RecipeError, match=r"predict.tpo: unknown key"):
        model.predict(pictures, tpo=2)
    with pytest.raises(package.OptionError, match=r"only a task from zoo.load"):
        package.run.build.Experiment(run.recipe).build_task().predict(pictures)


def test_a_loaded_model_generates_as_the_command_does(tmp_path, zoo):
    words = language(tmp_path / "text.txt", "trainer.max_steps=2")
    run = package.fit("lm_rope", parse_overrides(words), verbose=False)
    code, out, _ = zoo("generate", run.path, "prompt=abc", "tokens=9", "seed=4", "--json")
    assert code == 0
    expected = json.loads(out)
    assert package.generate(run, "abc", tokens=9, seed=4).to_dict() == expected
    assert package.load(run).generate("abc", tokens=9, seed=4) == expected["samples"][0]["text"]
    with pytest.raises(package.RecipeError, match=r"generate.tokens: expected"):
        package.load(run).generate("abc", tokens="many")


def test_a_diagnosis_shows_its_page(data):
    run = package.fit("vit_comrope", OWN, data=data, spec=SPEC, verbose=False)
    found = package.diagnose(run, samples=1, data={"test": data["test"]}, verbose=False)
    assert found.path == run.path / "diagnosis.html"
    assert "srcdoc=" in found._repr_html_()
    assert found.report.runs[0].metrics == package.evaluate(run, data=data).metrics
    with pytest.raises(package.RecipeError, match="smaples: unknown key"):
        package.diagnose(run, smaples=1)
