"""Whatever interrupts a run, resuming it gives the run that was not interrupted."""

import errno
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
from tiny import MORE, TINY
from training import fit

import zoo
from zoo.cli.edge import COMMAND_LINE
from zoo.config.command_line import parse_overrides
from zoo.errors import CheckpointError, RecipeError, Stopped, ZooError
from zoo.run import checkpoint
from zoo.run.callbacks.stop_on_signal import StopOnSignal
from zoo.run.processes import StepSize
from zoo.tasks.classification import Classification
from zoo.utils import follow_latest


def stop_at(step, number=signal.SIGTERM):
    """A hook that makes a signal arrive while `step` is under way."""

    def on_train_batch_start(self, trainer, *_):
        if trainer.global_step == step - 1:
            self._note(number, None)

    return on_train_batch_start


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing stopped: its folder, and what it gave."""
    run = tmp_path_factory.mktemp("whole") / "run"
    return run, fit("vit_comrope", [*TINY, *MORE], run, "never")


@pytest.fixture(scope="module")
def partial_run(tmp_path_factory):
    """The folder of a run that was stopped in its second epoch: `best` is of step 6 and `last` of step 8."""
    run = tmp_path_factory.mktemp("halted") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StopOnSignal, "on_train_batch_start", stop_at(8))
        with pytest.raises(Stopped):
            fit("vit_comrope", [*TINY, *MORE], run, "never")
    return run


@pytest.fixture
def partial_copy(tiny, partial_run):
    """The run that was stopped, as `broken`."""
    shutil.copytree(partial_run, "broken")
    return tiny


def test_a_run_that_accumulates_stops_between_steps(tiny, weights, monkeypatch):
    tiny.append("trainer.accumulate_grad_batches=4")  # of six in an epoch
    fit("vit_comrope", tiny, Path("whole"), "never")
    with monkeypatch.context() as patch:
        patch.setattr(
            StopOnSignal,
            "on_train_batch_start",
            lambda self, *given: self._note(signal.SIGTERM, None),
        )
        with pytest.raises(Stopped, match="SIGTERM at step 1; saved"):
            fit("vit_comrope", tiny, Path("broken"), "never")
    fit("vit_comrope", tiny, Path("broken"), "auto")
    assert same(weights("whole/checkpoints/last.ckpt"), weights("broken/checkpoints/last.ckpt"))


@pytest.mark.parametrize("step", [2, 6, 8])  # in the first epoch, at the end of it, in the second
def test_a_stopped_run_ends_as_if_it_had_not_been(step, whole, tiny, weights, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(StopOnSignal, "on_train_batch_start", stop_at(step))
        with pytest.raises(
            Stopped, match=f"SIGTERM at step {step}; saved broken/checkpoints/last.ckpt"
        ) as partial_copy:
            fit("vit_comrope", tiny, Path("broken"), "never")
    assert partial_copy.value.code == 143
    resumed = fit("vit_comrope", tiny, Path("broken"), "auto")
    for name in ("last", "best"):
        assert same(
            weights(whole[0] / f"checkpoints/{name}.ckpt"),
            weights(f"broken/checkpoints/{name}.ckpt"),
        )
    assert resumed["metrics"] == whole[1]["metrics"]


def test_a_run_stopped_in_validation_validates_anew(whole, tiny, weights, monkeypatch):
    def stop(self, trainer, pl_module, batch, batch_idx, *_):
        if trainer.current_epoch == 1 and batch_idx == 3:
            self._note(signal.SIGTERM, None)

    with monkeypatch.context() as patch:
        patch.setattr(StopOnSignal, "on_validation_batch_start", stop)
        with pytest.raises(Stopped, match="SIGTERM at step 12"):
            fit("vit_comrope", tiny, Path("broken"), "never")
    assert fit("vit_comrope", tiny, Path("broken"), "auto")["metrics"] == whole[1]["metrics"]
    for name in ("last", "best"):
        assert same(
            weights(whole[0] / f"checkpoints/{name}.ckpt"),
            weights(f"broken/checkpoints/{name}.ckpt"),
        )
    steps = [
        [row.split(",")[:2] for row in Path(run, "metrics.csv").read_text().splitlines()]
        for run in (whole[0], "broken")
    ]
    assert steps[0] == steps[1]


def test_resuming_a_finished_run_trains_no_more(tiny, weights):
    tiny.append("trainer.max_epochs=1")
    first = fit("vit_comrope", tiny, None, "never")
    before = weights(follow_latest(Path("runs/vit_comrope/latest/checkpoints/last.ckpt")))
    again = fit("vit_comrope", tiny, None, "auto")
    assert again["run"] == first["run"]
    assert again["metrics"] == first["metrics"]
    assert same(
        before, weights(follow_latest(Path("runs/vit_comrope/latest/checkpoints/last.ckpt")))
    )


def test_auto_starts_anew_where_the_recipe_changed(tiny):
    tiny.append("trainer.max_epochs=1")
    first = fit("vit_comrope", tiny, None, "never")
    second = fit("vit_comrope", [*tiny, "model.depth=1"], None, "auto")
    assert Path(first["run"]).resolve() != Path(second["run"]).resolve()


def test_a_checkpoint_of_another_recipe_is_refused(tiny):
    fit("vit_comrope", [*tiny, "trainer.max_epochs=1"], Path("one"), "never")
    differs = r"last.ckpt: of another recipe: it differs in model.depth \(2 there, 1 here\); "
    with pytest.raises(CheckpointError, match=differs + "start a new run from its weights with"):
        fit("vit_comrope", [*tiny, "model.depth=1"], None, "one")
    many = ["model.depth=1", "model.heads=1", "seed=3", "optim.lr=1e-9", "data.val=0.3"]
    with pytest.raises(
        CheckpointError, match=r"differs in seed \(0 there, 3 here\), .* and 2 others;"
    ):
        fit("vit_comrope", [*tiny, *many], None, "one")


def test_the_batch_size_changes_on_purpose_at_the_end_of_an_epoch(whole, tiny, caplog):
    shutil.copytree(whole[0], "run")
    changed = parse_overrides([*tiny, "data.batch_size=32", "trainer.max_epochs=5"])
    with pytest.raises(
        CheckpointError, match=r"differs in data.batch_size \(64 there, 32 here\)"
    ) as e:
        zoo.fit("vit_comrope", changed, run_dir="run", resume="auto", verbose=False)
    assert 'go on all the same with accept_changes="data.batch_size"' in str(e.value)
    assert "--accept-changes data.batch_size" in e.value.spell(COMMAND_LINE)

    options = {"run_dir": "run", "resume": "auto", "accept_changes": "data.batch_size"}
    with caplog.at_level("INFO", "zoo"):
        run = zoo.fit("vit_comrope", changed, verbose=None, **options)
    assert "Batch size: 32 from step 18 on" in caplog.text
    # three epochs of six steps, then two of twelve; the schedule ends with them
    last = checkpoint.read(Path("run/checkpoints/last.ckpt"))
    assert last["global_step"] == 3 * 6 + 2 * 12 == run.history()[-1]["step"]
    schedule = last["lr_schedulers"][0]
    assert schedule["_last_lr"][0] == pytest.approx(0.01 * schedule["base_lrs"][0])
    assert last["zoo"]["recipe"]["data"]["batch_size"] == 32


def test_a_step_of_other_samples_is_said_once(whole, tiny, caplog):
    shutil.copytree(whole[0], "run")
    more = [*tiny, "trainer.max_epochs=4", "trainer.accumulate_grad_batches=3"]
    with caplog.at_level("WARNING", "zoo"):
        fit("vit_comrope", more, Path("run"), "auto")
    found = [one.getMessage() for one in caplog.records if "Samples of a step" in one.getMessage()]
    assert found == [
        "Samples of a step: 192 (64 x 3 accumulated x 1) from here on, 64 (64 x 1 accumulated x 1)"
        " before; trainer.accumulate_grad_batches=1 keeps their number"
    ]


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ((64, 1, 2), (64, 2, 1), ""),
        ((64, 1, 2), (128, 1, 1), ""),  # with a global batch size
        ((64, 1, 1), (32, 1, 1), ""),  # which the user has accepted by name
        ((None, 1, 2), (None, 1, 1), ""),
        ((64, 1, 3), (64, 1, 2), "the learning rate was chosen for those before"),
        ((64, 1, 2), (32, 1, 1), "the learning rate was chosen for those before"),
        ((64, 1, 8), (64, 1, 2), "trainer.accumulate_grad_batches=4 keeps their number"),
    ],
)
def test_a_warning_says_how_the_samples_of_a_step_stay_the_same(before, now, expected):
    warning = StepSize(*now).explain_change(StepSize(*before))
    assert warning.rpartition("; ")[2] == expected


def test_accumulation_divides_a_global_batch_anew_at_the_end_of_an_epoch_only(tiny):
    tiny.append("data.global_batch_size=64")
    tiny.remove("data.batch_size=64")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StopOnSignal, "on_train_batch_start", stop_at(2))
        with pytest.raises(Stopped):
            fit("vit_comrope", tiny, Path("run"), "never")
    with pytest.raises(CheckpointError, match="saved within an epoch, whose batches have one size"):
        fit("vit_comrope", [*tiny, "trainer.accumulate_grad_batches=2"], Path("run"), "auto")
    # another way to say as many samples is a change that the user accepts by one name
    own = parse_overrides([*tiny, "data.batch_size=64", "~data.global_batch_size"])
    with pytest.raises(CheckpointError) as e:
        zoo.fit("vit_comrope", own, run_dir="run", resume="auto", verbose=False)
    assert str(e.value).count("accept_changes") == 1


def test_the_batch_size_does_not_change_within_an_epoch(partial_copy):
    changed = parse_overrides([*partial_copy, "data.batch_size=32"])
    with pytest.raises(CheckpointError, match="saved within an epoch, whose batches have one size"):
        zoo.fit(
            "vit_comrope",
            changed,
            run_dir="broken",
            resume="auto",
            accept_changes=["data.batch_size"],
            verbose=False,
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"resume": "auto", "accept_changes": "model.depth"},
            "accept_changes: model.depth cannot change while a run goes on; it can be data.batch_size",
        ),
        ({"accept_changes": "data.batch_size"}, 'nothing is resumed; add resume="auto"'),
    ],
)
def test_other_changes_are_not_accepted(tiny, options, message):
    with pytest.raises(RecipeError, match=message):
        zoo.fit("vit_comrope", parse_overrides(tiny), verbose=False, **options)


def test_a_run_that_trained_longer_than_is_allowed_now_is_refused(tiny):
    fit("vit_comrope", [*tiny, "trainer.max_epochs=3"], Path("one"), "never")
    with pytest.raises(CheckpointError, match="saved in epoch 3, after trainer"):
        fit("vit_comrope", [*tiny, "trainer.max_epochs=1"], Path("one"), "auto")


@pytest.mark.parametrize(("damaged", "step"), [("last", 6), ("best", 8)])
def test_auto_takes_the_newest_that_is_whole(damaged, step, whole, partial_copy, weights, caplog):
    Path(f"broken/checkpoints/{damaged}.ckpt").write_bytes(b"PK")
    with caplog.at_level("INFO", "zoo"):
        fit("vit_comrope", partial_copy, Path("broken"), "auto")
    assert f"Skipped broken/checkpoints/{damaged}.ckpt: corrupt" in caplog.text
    assert (
        f"Resuming from broken/checkpoints/{'best' if damaged == 'last' else 'last'}.ckpt"
        in caplog.text
    )
    assert same(
        weights(whole[0] / "checkpoints/last.ckpt"), weights("broken/checkpoints/last.ckpt")
    )
    assert checkpoint.read(Path("broken/checkpoints/best.ckpt"))["global_step"] > step


def test_a_run_killed_between_its_last_two_files_has_both(whole, tiny, weights):
    shutil.copytree(whole[0], "run")
    Path("run/checkpoints/best.ckpt").write_bytes(Path("run/checkpoints/last.ckpt").read_bytes())
    Path("run/checkpoints/last.ckpt").unlink()
    fit("vit_comrope", tiny, Path("run"), "auto")
    assert same(weights("run/checkpoints/last.ckpt"), weights("run/checkpoints/best.ckpt"))


def test_auto_stops_where_no_checkpoint_is_whole(partial_copy):
    for name in ("last", "best"):
        Path(f"broken/checkpoints/{name}.ckpt").write_bytes(b"PK")
    with pytest.raises(
        CheckpointError, match=r"(?s)no checkpoint .*best.ckpt: corrupt.*last.ckpt: corrupt"
    ):
        fit("vit_comrope", partial_copy, Path("broken"), "auto")


def test_auto_takes_over_what_was_killed_before_it_saved(tiny):
    Path("run/checkpoints").mkdir(parents=True)
    Path("run/recipe.yaml").write_text("cut off")
    Path("run/metrics.csv").write_text("step,epoch\n1,0\n1")
    assert fit("vit_comrope", tiny, Path("run"), "auto")["run"] == "run"
    assert zoo.load_recipe("run/recipe.yaml").name == "recipe"


def test_saving_in_the_background_changes_nothing(whole, tiny, weights):
    fit("vit_comrope", [*tiny, "trainer.async_checkpoint=true"], Path("run"), "never")
    for name in ("last", "best"):
        assert same(
            weights(whole[0] / f"checkpoints/{name}.ckpt"), weights(f"run/checkpoints/{name}.ckpt")
        )


@pytest.mark.robustness
@pytest.mark.parametrize("save", ["false", "true"])
def test_a_full_disk_stops_the_run_with_its_last_good_checkpoint(save, tiny, monkeypatch):
    files = iter(range(4))

    def fsync(handle, original=os.fsync):
        if next(files, None) is None:  # file and folder of start.json and of the first
            raise OSError(errno.ENOSPC, "No space left on device")
        original(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    message = "last.ckpt: cannot be written, No space left on device; still there: best.ckpt in run/checkpoints"
    with pytest.raises(ZooError, match=message):
        fit("vit_comrope", [*tiny, f"trainer.async_checkpoint={save}"], Path("run"), "never")
    assert checkpoint.read(Path("run/checkpoints/best.ckpt"))["global_step"] == 6
    assert not list(Path("run").rglob("*.writing"))


def test_a_checkpoint_without_newer_keys_has_their_defaults(whole, tiny, weights):
    shutil.copytree(whole[0], "old")
    path = Path("old/checkpoints/last.ckpt")
    content = checkpoint.read(path)
    del content["zoo"]["recipe"]["optim"]["encoding_lr"]
    checkpoint.write_sealed(checkpoint.serialise(content), path)
    assert fit("vit_comrope", tiny, Path("old"), "auto")["metrics"] == whole[1]["metrics"]
    changed = [*tiny, "optim.encoding_lr=2.0"]
    with pytest.raises(
        CheckpointError,
        match=r"of another recipe: it differs in optim.encoding_lr \(1.0 there, 2.0 here\)",
    ):
        fit("vit_comrope", changed, Path("old"), "auto")


def test_encoding_lr_without_parameters_is_said_once(tiny, caplog):
    tiny += ["model.encoding=rope_axial", "optim.encoding_lr=2.0", "trainer.fast_dev_run=true"]
    with caplog.at_level("INFO", "zoo"):
        fit("vit_comrope", tiny, Path("run"), "never")
    assert caplog.text.count("optim.encoding_lr 2 has no effect: the encoding has no param") == 1


def test_a_killed_run_goes_on_from_the_steps_that_it_saved(whole, tiny, weights, monkeypatch):
    tiny.append("trainer.save_every_n_steps=4")  # of six in an epoch

    def die(self, trainer, *_):
        if trainer.global_step == 9:
            raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(StopOnSignal, "on_train_batch_start", die)
        with pytest.raises(RuntimeError, match="killed"):
            fit("vit_comrope", tiny, Path("broken"), "never")
    assert checkpoint.read(Path("broken/checkpoints/last.ckpt"))["global_step"] == 8
    assert fit("vit_comrope", tiny, Path("broken"), "auto")["metrics"] == whole[1]["metrics"]
    for name in ("last", "best"):
        assert same(
            weights(whole[0] / f"checkpoints/{name}.ckpt"),
            weights(f"broken/checkpoints/{name}.ckpt"),
        )


def test_a_run_stops_early_and_stays_stopped(tiny, weights, caplog):
    tiny += ["trainer.early_stopping={patience: 1, min_delta: 1.0}", "optim.lr=1e-9"]
    with caplog.at_level("INFO", "zoo"):
        first = fit("vit_comrope", tiny, Path("run"), "never")
    assert "Stopped early at step 12: val/loss has not improved in 1 validations" in caplog.text
    before = weights("run/checkpoints/last.ckpt")
    assert fit("vit_comrope", tiny, Path("run"), "auto")["metrics"] == first["metrics"]
    assert checkpoint.read(Path("run/checkpoints/last.ckpt"))["global_step"] == 12
    assert same(before, weights("run/checkpoints/last.ckpt"))


def die_at(step):
    """A hook that ends a run like a kill when a step begins."""

    def on_train_batch_start(self, trainer, *_):
        if trainer.global_step == step:
            raise RuntimeError("killed")

    return on_train_batch_start


def list_steps(run):
    return sorted(path.stem for path in Path(run, "checkpoints").glob("*.ckpt"))


def read_rows(run):
    header, *rows = [row.split(",") for row in Path(run, "metrics.csv").read_text().splitlines()]
    shown = [at for at, name in enumerate(header) if "perf" not in name and "attention" not in name]
    return [header[at] for at in shown], [[row[at] for at in shown] for row in rows]


@pytest.fixture(scope="module")
def validation_run(tmp_path_factory):
    """A run that validates within epochs, keeps the two best, and was not stopped."""
    run = tmp_path_factory.mktemp("validated") / "run"
    return run, fit("vit_comrope", [*TINY, *MORE, *OFTEN], run, "never")


OFTEN = ["trainer.val_every_n_steps=4", "trainer.save_top_k=2", "trainer.save_every_n_steps=2"]


def test_a_run_validates_within_epochs_and_keeps_the_best(validation_run):
    header, rows = read_rows(validation_run[0])
    loss, step = header.index("val/loss"), header.index("step")
    # rows count steps from 0
    losses = {int(row[step]) + 1: float(row[loss]) for row in rows if row[loss]}
    assert [*losses] == [4, 6, 8, 12, 16, 18]
    best = sorted(losses, key=lambda step: (losses[step], -step))[:2]
    names = sorted(f"step-{step:08}" for step in best)
    assert list_steps(validation_run[0]) == ["best", "last", *names]
    content = checkpoint.read(validation_run[0] / "checkpoints/best.ckpt")
    assert content["global_step"] == best[0]
    assert content["kept"][0][0] == best[0]


@pytest.mark.parametrize("step", [5, 13])  # `last` is of step 4 and 12
def test_a_killed_run_validates_and_keeps_what_it_would_have(
    step, validation_run, tiny, weights, monkeypatch
):
    tiny += OFTEN
    with monkeypatch.context() as patch:
        patch.setattr(StopOnSignal, "on_train_batch_start", die_at(step))
        with pytest.raises(RuntimeError, match="killed"):
            fit("vit_comrope", tiny, Path("broken"), "never")
    assert (
        fit("vit_comrope", tiny, Path("broken"), "auto")["metrics"] == validation_run[1]["metrics"]
    )
    assert list_steps("broken") == list_steps(validation_run[0])
    assert read_rows("broken") == read_rows(validation_run[0])
    for name in list_steps("broken"):
        path = f"checkpoints/{name}.ckpt"
        assert same(weights(validation_run[0] / path), weights(Path("broken", path)))


@pytest.mark.parametrize("hook", ["on_train_batch_start", "on_validation_batch_start"])
def test_a_run_stopped_at_a_validation_within_an_epoch_validates(
    hook, validation_run, tiny, weights, monkeypatch
):
    tiny += OFTEN

    def stop(self, trainer, *_):
        if trainer.global_step == (8 if "validation" in hook else 7):
            self._note(signal.SIGTERM, None)

    with monkeypatch.context() as patch:
        patch.setattr(StopOnSignal, hook, stop)
        with pytest.raises(Stopped, match="SIGTERM at step 8"):
            fit("vit_comrope", tiny, Path("broken"), "never")
    assert (
        fit("vit_comrope", tiny, Path("broken"), "auto")["metrics"] == validation_run[1]["metrics"]
    )
    assert read_rows("broken") == read_rows(validation_run[0])
    for name in list_steps(validation_run[0]):
        path = f"checkpoints/{name}.ckpt"
        assert same(weights(validation_run[0] / path), weights(Path("broken", path)))


def test_steps_are_counted_where_gradients_are_accumulated(tiny):
    tiny += ["trainer.accumulate_grad_batches=4", "trainer.val_every_n_steps=1"]
    fit("vit_comrope", [*tiny, "trainer.max_epochs=2"], Path("run"), "never")
    header, rows = read_rows("run")
    step, loss = header.index("step"), header.index("val/loss")
    assert [int(row[step]) for row in rows if row[loss]] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("val_every_n_steps=9", "9 steps are longer than training, max_steps 8; choose fewer"),
        ("save_every_n_steps=9", "9 steps are longer than training, max_steps 8; choose fewer"),
        ("save_top_k=2", "task classification monitors no metric; name one as `monitor` of its"),
        ("early_stopping={patience: 1}", "task classification monitors no metric; name one"),
    ],
)
def test_what_cannot_take_effect_is_refused(option, problem, tiny, monkeypatch):
    init = Classification.__init__

    def without_monitor(self, *given, **options):
        init(self, *given, **options)
        self.monitor = ""

    monkeypatch.setattr(Classification, "__init__", without_monitor)
    key = option.partition("=")[0]
    with pytest.raises(RecipeError) as caught:
        zoo.load_recipe(
            "vit_comrope", parse_overrides([*tiny, "trainer.max_steps=8", f"trainer.{option}"])
        )
    assert f"trainer.{key}: {problem}" in str(caught.value)
    assert caught.value.code == 2


def test_options_of_saving_are_part_of_the_hash_of_a_recipe(tiny):
    recipes = [
        zoo.load_recipe("vit_comrope", parse_overrides([*tiny, *more]))
        for more in ((), OFTEN[:1], OFTEN)
    ]
    assert len({recipe.hash for recipe in recipes}) == 3


def test_a_run_of_so_many_steps_goes_on_after_an_epoch(tiny, weights, monkeypatch):
    tiny += ["trainer.max_epochs=null", "trainer.max_steps=9", "trainer.log_every_n_steps=1"]
    whole = fit("vit_comrope", tiny, Path("whole"), "never")
    with monkeypatch.context() as patch:
        patch.setattr(StopOnSignal, "on_train_batch_start", die_at(7))
        with pytest.raises(RuntimeError, match="killed"):
            fit("vit_comrope", tiny, Path("broken"), "never")
    assert checkpoint.read(Path("broken/checkpoints/last.ckpt"))["global_step"] == 6
    assert fit("vit_comrope", tiny, Path("broken"), "auto")["metrics"] == whole["metrics"]
    assert read_rows("broken") == read_rows("whole")
    paths = [f"{run}/checkpoints/last.ckpt" for run in ("whole", "broken")]
    assert same(*map(weights, paths))
