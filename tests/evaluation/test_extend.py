"""Ways to a longer context, side by side: each is what `zoo eval` measures, and the gate is kept."""

import copy
import json
import math
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import language
from untrained import write_checkpoint

import zoo
from zoo.cli.main import main
from zoo.errors import Stopped
from zoo.evaluation import extend as extend_module
from zoo.evaluation import key_tokens
from zoo.evaluation.extend import (
    ExtendOptions,
    Extension,
    GateOptions,
    Score,
    compute_temperature,
    extend,
)
from zoo.evaluation.extend_result import ExtendResult, MethodResult, bootstrap_difference
from zoo.evaluation.key_tokens import compute_long_perplexity, find_key_tokens
from zoo.evaluation.rotation_search import CANDIDATES, search_exponents
from zoo.run.callbacks.stop_on_signal import StopOnSignal
from zoo.run.load import restore
from zoo.tasks.metrics import token_losses

TIMES, LENGTH = 4, 64
UNTRAINED = ("none", "truncate", "linear", "ntk", "yarn", "dynamic", "drop")
OPEN = GateOptions(short_loss=10.0)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """An untrained language model of 16 tokens, with two layers, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    words = language(tmp_path / "letters.txt", "model.depth=2", "model.encoding.base=100")
    # files of the recipe are one word each
    write_checkpoint(Path("run"), "lm_rope", [*words, "trainer.num_threads=1"])
    return "run"


@pytest.fixture
def extension(run):
    (path,) = Path(run).rglob("*.ckpt")
    options = ExtendOptions(to="4x", methods=UNTRAINED, gate=OPEN)
    return Extension(path, *restore(path, {"trainer.accelerator": "cpu"}), options)


def test_each_method_is_what_an_evaluation_measures(run, extension):
    found = zoo.evaluate(
        run, lengths=[LENGTH], extrapolation=list(UNTRAINED[1:]), verbose=False, to="tested"
    )
    expected = {one.condition.extrapolation or "none": one for one in found.conditions[1:]}
    assert expected.keys() == {*UNTRAINED}
    for name in UNTRAINED:
        factor = None if name in ("none", "truncate", "drop") else float(TIMES)
        score = extension.score(extension.build(name, factor), "test", LENGTH)
        assert score.loss == pytest.approx(expected[name].metrics["test/loss"], rel=1e-6)
        positions = torch.tensor(expected[name].position_losses).split(2)
        means = [float(one.mean()) for one in positions]
        if max(expected[name].position_counts) == min(expected[name].position_counts):
            assert score.positions == pytest.approx(means, rel=1e-4)
    losses = {
        extension.score(extension.build(name, 4.0), "test", LENGTH).loss for name in UNTRAINED
    }
    assert len(losses) >= len(UNTRAINED) - 1  # they differ


def test_a_training_follows_the_definition_of_its_method(extension):
    length = {"none": 64, "linear": 64, "yarn": 64, "ntk": 64, "drop": 16, "windows": 16}
    for name, expected in length.items():
        recipe = extension.change_recipe(f"{name}+train")
        options, data = recipe.model.options, recipe.data.options
        assert data["length"] == expected
        assert data["batch_size"] * data["length"] == 8 * 16
        assert recipe.trainer.max_steps == 100
        assert recipe.optim.options["lr"] == pytest.approx(3e-3 / 3)
        assert recipe.init_from == str(extension.path)
        encoding = options["encoding"][0]
        if name in ("linear", "yarn", "ntk"):
            scaling = encoding.options["scaling"]
            assert (scaling.rule, scaling.factor, scaling.original) == (name, 4.0, 16)
        if name == "drop":
            assert encoding.name == "none"
        if name in ("none", "windows"):
            assert encoding.name == "rope"
            assert encoding.options["scaling"] is None
        if name == "windows":
            assert options["layer_pattern"] == ("full", "local")
            assert dict(options["layer_types"]["local"]) == {"window": 4}
            assert options["layer_types"]["full"]["encoding"][0].name == "none"


def test_longrope_divides_each_frequency_by_its_power_of_the_factor(extension):
    exponents = torch.tensor([0.0, 0.3, 0.7, 1.2], dtype=torch.float64)
    plain = extension.measure_waves(extension.task)
    assert torch.allclose(plain, 100.0 ** (-torch.arange(4).double() / 4))
    divided = extension.divide(exponents)
    assert torch.allclose(extension.measure_waves(divided), plain / TIMES**exponents)
    # equal powers are position interpolation, without a factor of cos and sin
    equal = extension.score(extension.divide(torch.ones(4).double()), "test", LENGTH)
    linear = extension.score(extension.build("linear", float(TIMES)), "test", LENGTH)
    assert equal.loss == pytest.approx(linear.loss, rel=1e-6)


def test_a_search_begins_with_the_rules_and_is_scored_on_validation_windows(extension, monkeypatch):
    asked, scored = [], {}

    def plant(self, task, split, length, *_):
        asked.append((split, length))
        exponents = -(self.measure_waves(task) / self.measure_waves(self.task)).log()
        scored[tuple(exponents.tolist())] = loss = float((exponents - 0.4).square().sum())
        return Score(torch.tensor([loss]), torch.tensor([1]), (), ())

    monkeypatch.setattr(Extension, "score", plant)
    found = extension._search() * math.log(2.5)
    assert {*asked} == {("val", 40)}
    assert len(asked) == CANDIDATES
    assert tuple(found.tolist()) == pytest.approx(min(scored, key=scored.get))
    rules = [extension.measure_waves(extension.build(one, 2.5, 40)) for one in ("linear", "ntk")]
    plain = extension.measure_waves(extension.task)
    for waves, logs in zip(rules, scored, strict=False):
        assert logs == pytest.approx((plain / waves).log().tolist(), abs=1e-6)
    assert min(scored.values()) < next(iter(scored.values()))


def test_a_search_keeps_exponents_in_order_and_comes_near_a_planted_minimum():
    goal, seen = torch.linspace(0, 1, 8).double() ** 2, []

    def score(exponents):
        seen.append(exponents)
        return float((exponents - goal).square().sum()) if len(seen) != 2 else math.nan

    starts = [torch.ones(8), torch.linspace(0, 1, 8), torch.zeros(8)]
    found = search_exponents(score, starts, 4.0)
    assert all((one.diff() >= 0).all() for one in seen)
    assert max(float(one.max()) for one in seen) <= 1 + math.log(1.25) / math.log(4)
    values = [float((one - goal).square().sum()) for one in seen]
    # what is not a number is never chosen
    assert float((found - goal).square().sum()) == min(values[:1] + values[2:])
    assert len(seen) == CANDIDATES
    seen.clear()
    assert torch.equal(found, search_exponents(score, starts, 4.0))


def test_a_temperature_multiplies_the_scores_of_all_heads(extension):
    ramp = extension.heat(extension.recipe, extension.task, 1.5)
    twin = copy.deepcopy(extension.task)
    for block in twin.model.blocks:
        block.attn.q_proj.weight.data *= 1.5
        block.attn.q_proj.bias.data *= 1.5
    first, second = (extension.score(one, "test", LENGTH).loss for one in (ramp, twin))
    assert first == pytest.approx(second, rel=1e-6)
    assert first != pytest.approx(extension.score(extension.task, "test", LENGTH).loss, rel=1e-6)
    assert compute_temperature(0.4, 4.0) == pytest.approx(1 + 0.4 * math.log(4))


def test_methods_with_temperatures_train_and_test_what_they_say(run, monkeypatch):
    monkeypatch.setattr(extend_module, "GROWTHS", (0.0, 0.5))
    methods = ("temperature", "drop+train", "head_scale+train")
    options = ExtendOptions(to="2x", methods=methods, steps=2, gate=OPEN)
    none, heated, dropped, heads = extend(run, {}, options).methods
    assert heated.short_loss == none.short_loss
    for one in (heated, dropped):
        assert one.temperature in (1.0, pytest.approx(1 + 0.5 * math.log(2)))
    trained = zoo.load("run/extend-32/runs/head_scale+train").state_dict()
    before = zoo.load(run).state_dict()
    scales = {name for name in trained if name not in before}
    assert len(scales) == 2
    assert all((trained[name] != 1).all() for name in scales)
    assert all(torch.equal(trained[name], before[name]) for name in before)
    assert heads.tokens == 2 * 8 * 16
    assert heads.loss != none.loss


def test_a_model_without_positions_has_temperatures(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = language(tmp_path / "letters.txt", "model.depth=2", "model.encoding=none")
    write_checkpoint(Path("run"), "lm_rope", words)
    (path,) = Path("run").rglob("*.ckpt")
    found = Extension(path, *restore(path, {"trainer.accelerator": "cpu"}), ExtendOptions())
    expected = ("none", "truncate", "none+train", "head_scale+train", "temperature")
    assert found.methods == expected
    with pytest.raises(zoo.RecipeError, match="no method drop"):
        Extension(path, found.experiment, found.task, ExtendOptions(methods=("drop",)))


def test_key_tokens_are_those_that_far_context_explains():
    long_loss = torch.tensor([[0.5, 1.9, 2.1, 0.5, 0.5]])
    short_loss = torch.tensor([[2.6, 4.5, 5.0, 2.4, 9.0]])
    is_target = torch.tensor([[True, True, True, True, False]])
    keys = find_key_tokens(long_loss, short_loss, is_target)
    assert keys.tolist() == [[True, True, False, False, False]]
    judged = torch.tensor([[1.0, 2.0, 9.0, 9.0, 9.0]])
    assert compute_long_perplexity(judged, keys) == pytest.approx(math.exp(1.5))
    assert compute_long_perplexity(judged, keys & False) is None


def test_long_perplexity_is_of_the_key_tokens_of_the_evaluator(run, monkeypatch):
    # a little gain counts: an untrained model gains hardly anything from far context
    monkeypatch.setattr(key_tokens, "GAIN", 1e-3)
    monkeypatch.setattr(key_tokens, "HIGHEST_LOSS", math.inf)
    words = language(Path("letters.txt"), "model.depth=1", "data.length=32", "seed=1")
    write_checkpoint(Path("judge"), "lm_rope", words)
    options = ExtendOptions(to="2x", methods=("none",), evaluator="judge")
    (path,) = Path(run).rglob("*.ckpt")
    found = Extension(path, *restore(path, {"trainer.accelerator": "cpu"}), options)
    keys = found.key_tokens
    judge = found.evaluator
    data = found.experiment.data_variant({"length": 32, "batch_size": 4})
    data.setup("test")
    batches = [batch[:2] for batch in data.build_loader("test")]
    inputs, targets = (torch.cat(part) for part in zip(*batches, strict=True))
    with torch.no_grad():
        full, loss = (
            token_losses(model(inputs), targets) for model in (judge.model, found.task.model)
        )
        # at most 16 tokens at once, and at least 8 before each from the second segment on
        short = torch.cat(
            [
                judge.model(inputs[:, end - 16 : end])[:, -new:]
                for end, new in ((16, 16), (24, 8), (32, 8))
            ],
            dim=1,
        )
    assert torch.equal(keys, token_losses(short, targets) - full > 1e-3)
    assert not keys[:, :16].any()
    assert keys.any()
    expected = math.exp(float(loss[keys].mean()))
    result = extend(run, {}, options)
    assert result.methods[0].long_perplexity == pytest.approx(expected, rel=1e-5)
    assert "LongPPL" in result.table()


def test_a_factor_is_chosen_on_validation_windows_of_another_length(extension, monkeypatch):
    asked = []
    score = Extension.score

    def note(self, task, split, length):
        asked.append((split, length))
        return score(self, task, split, length)

    monkeypatch.setattr(Extension, "score", note)
    factor = extension._tune("yarn")
    assert asked == [("val", 40)] * 3
    losses = {
        multiple: score(extension, extension.build("yarn", multiple * 2.5, 40), "val", 40).loss
        for multiple in (1.0, 1.5, 2.0)
    }
    assert factor == 4 * min(losses, key=losses.get)


def test_a_stopped_call_goes_on_and_trains_what_is_left(run, monkeypatch):
    methods = ("none", "yarn", "yarn+train", "windows+train")
    options = ExtendOptions(to="2x", methods=methods, steps=3, gate=OPEN)
    whole = extend(run, {}, ExtendOptions(**{**vars(options), "folder": "whole"}))
    measure = Extension._measure

    def stop(self, name, *given):
        if name == "yarn+train":
            raise KeyboardInterrupt
        return measure(self, name, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Extension, "_measure", stop)
        with pytest.raises(KeyboardInterrupt):
            extend(run, {}, options)
    folder = Path("run/extend-32")
    before = json.loads((folder / "extend.json").read_text())["methods"]
    assert [one["name"] for one in before] == ["none", "yarn"]
    resumed = extend(run, {}, options)
    after = json.loads((folder / "extend.json").read_text())
    assert after["methods"][:2] == before
    assert [one.loss for one in resumed.methods] == [one.loss for one in whole.methods]
    assert [one.name for one in resumed.methods] == [*methods]
    assert after["recommended"] == resumed.recommended
    assert resumed.methods[2].tokens == 3 * 8 * 16


def test_a_signal_in_a_training_names_the_way_on(run, monkeypatch):
    options = ExtendOptions(methods=("yarn+train",), steps=6, gate=OPEN)

    def note_signal(self, trainer, *_):
        if trainer.global_step == 2:
            self._note(signal.SIGTERM, None)

    with monkeypatch.context() as patch:
        patch.setattr(StopOnSignal, "on_train_batch_start", note_signal)
        with pytest.raises(
            Stopped, match=r"stopped in yarn\+train; the same call goes on"
        ) as stopped:
            extend(run, {}, options)
    assert stopped.value.code == 143
    resumed = extend(run, {}, options).methods[1]
    whole = extend(run, {}, ExtendOptions(**{**vars(options), "folder": "whole"})).methods[1]
    assert resumed.window_losses == whole.window_losses


def test_the_gate_stops_what_is_worse_at_the_trained_length(run):
    options = ExtendOptions(
        to="4x", methods=("yarn", "drop", "truncate"), gate=GateOptions(short_loss=0)
    )
    result = extend(run, {}, options)
    base = result.methods[0].short_loss
    for one in result.methods:
        assert one.stopped == (one.short_loss > base)
        assert (one.loss is None) == one.stopped
    assert any(one.stopped for one in result.methods)
    assert result.recommended in [one.name for one in result.methods if not one.stopped]
    assert "stopped by gate" in result.table()


def test_answers_are_counted_by_depth(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = ["model.dim=16", "model.depth=1", "data.test=40", "data.val=10", "data.train=10"]
    write_checkpoint(Path("run"), "passkey_rope", small)
    result = extend("run", {"trainer.accelerator": "cpu"}, ExtendOptions(methods=("none",)))
    assert len(result.methods[0].depths) == 10
    assert "right by depth" in result.table()


def test_an_interval_is_that_of_a_bootstrap_over_windows():
    generator = np.random.default_rng(0)
    counts = generator.integers(20, 40, 200)
    differences = 0.1 * counts + generator.normal(0, 1, 200)
    mean, low, high = bootstrap_difference(torch.tensor(differences), torch.tensor(counts))
    assert mean == pytest.approx(differences.sum() / counts.sum())
    # the error of a ratio of sums, by linearization
    residuals = differences - mean * counts
    error = np.sqrt((residuals**2).sum()) / counts.sum()
    assert (high - low) / 2 == pytest.approx(1.96 * error, rel=0.1)
    assert low < mean < high


def test_what_is_not_measured_is_not_recommended():
    def result(*methods):
        return ExtendResult(
            recipe="a", checkpoint=Path("a"), folder=Path("a"), trained=8, length=16, gate=0.01,
            steps=1, methods=methods,
        )  # fmt: skip

    none = MethodResult(
        name="none",
        short_loss=1.0,
        loss=2.0,
        window_losses=(4.0, 4.0, 4.0),
        window_targets=(2, 2, 2),
    )
    better = MethodResult(
        name="yarn",
        short_loss=1.0,
        loss=1.5,
        window_losses=(3.0, 3.0, 3.0),
        window_targets=(2, 2, 2),
    )
    broken = MethodResult(name="ntk", short_loss=1.0, loss=float("nan"))
    stopped = MethodResult(name="linear", short_loss=3.0, stopped=True)
    assert result(none, broken, stopped, better).recommended == "yarn"
    assert result(none, better).compare("yarn") == pytest.approx((-0.5, -0.5, -0.5))
    assert "is told apart" in result(none, better).conclude()
    assert result(stopped).recommended is None
    cut = MethodResult(name="truncate", short_loss=1.0, loss=1.0)
    assert "No method gains" in result(none, cut, better).conclude()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["to=0.5x"], "8 tokens are not more than the trained 16"),
        (["to=1x"], "not more than the trained 16"),
        (["to=12"], "12 tokens are not more"),
        (["to=1.03x"], "not an integer"),
        (["to=long"], "no length"),
        (["methods=[yarnn]"], "did you mean yarn"),
        (["methods=[longrop]"], "did you mean longrope"),
        (
            ["evaluator=run"],
            "evaluator: it was trained at 16 tokens, and key tokens are those of 32",
        ),
        (["methods=yarn"], "expected a list"),
        (["steps=0"], "steps"),
        (["gate.short_los=1"], "did you mean gate.short_loss"),
        (["folder=full"], "full has other files"),
        (["model.encoding=alibi"], "alibi, has no rule for longer texts"),
    ],
)
def test_a_wrong_call_is_refused_before_it_measures(run, words, message, capsys):
    Path("full").mkdir()
    Path("full/notes.txt").touch()
    assert main(["extend", run, *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert not [*Path().rglob("extend.json")]


def test_results_of_another_call_are_not_mixed(run, capsys):
    assert main(["extend", run, "methods=[none]", "folder=out"]) == 0
    assert main(["extend", run, "methods=[none]", "folder=out", "to=4x"]) == 2
    assert "out has results with another to" in capsys.readouterr().err
    assert main(["extend", run, "methods=[none,truncate]", "folder=out", "--json"]) == 0


@pytest.mark.parametrize("recipe", ["vit_none", "mlm_t5"])
def test_other_models_are_refused(recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_checkpoint(Path("run"), recipe, ["model.depth=1"])
    assert main(["extend", "run"]) == 2
    assert "causal language models" in capsys.readouterr().err
