"""A file of a run that is damaged: each command that reads it names it, with its exit code."""

import json
from pathlib import Path

import pytest
from damages import DAMAGES, restore
from tiny import language
from untrained import write_checkpoint

import zoo as api
from zoo.errors import CheckpointError, DataError
from zoo.run.loggers import MetricsFile

CPU = "trainer.accelerator=cpu"
ENDED = {"metrics": {"test/loss": 1.0, "test/accuracy": 0.5}, "recipe": "lm_rope", "steps": 2}
COMMANDS = (
    ("eval", CPU),
    ("diagnose", CPU),
    ("generate", "prompt=a"),
    ("export", "out", "to=safetensors"),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of a decoder that nobody trained, with the files of one that is complete."""
    folder = tmp_path_factory.mktemp("damaged")
    words = [*language(folder / "letters.txt"), "evaluate.lengths=null"]
    write_checkpoint(folder / "run", "lm_rope", words)
    run = folder / "run"
    (run / "end.json").write_text(json.dumps(ENDED))
    (run / "metrics.csv").write_text("step,epoch,val/loss\n0,0,2.0\n1,,1.5\n")
    (run / "recipe.yaml").write_text("extends: lm_rope\n")
    return run


@pytest.fixture
def damage_file(run):
    """damage_file(name, damage); whatever was done is undone."""
    held = {}

    def damage(name, how):
        held.setdefault(run / name, (run / name).read_bytes())
        DAMAGES[how](run / name)

    yield damage
    for path, content in held.items():
        restore(path, content)


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_checkpoint_is_named_by_each_command(how, run, damage_file, zoo, tmp_path):
    damage_file("checkpoints/best.ckpt", how)
    recipe = ["lm_rope", *language(tmp_path / "letters.txt")]
    fits = [
        ("fit", *recipe, "--resume", run),
        ("fit", *recipe, "--run-dir", run, "--resume", "auto"),
    ]
    for verb, *words in [*((verb, run, *words) for verb, *words in COMMANDS), *fits]:
        code, _, message = zoo(verb, *words)
        # what is no file at all is no checkpoint either
        named = "best.ckpt" in message or f"{run}: no checkpoint in it" in message
        assert (code, named, "Traceback" in message) == (5, True, False), (verb, message)
    with pytest.raises(CheckpointError):
        api.load(run)
    assert not Path("out").exists()


@pytest.mark.parametrize("how", DAMAGES)
def test_damaged_results_are_named_wherever_they_are_read(how, run, damage_file, zoo):
    damage_file("end.json", how)
    for read in (
        lambda: api.Run(run).result,
        lambda: api.Run(run).metrics,
        lambda: repr(api.Run(run)),
    ):
        with pytest.raises(DataError, match=r"end\.json: not as zoo writes it"):
            read()
    assert not api.Run(run).stopped
    code, _, message = zoo("export", run, "out", "to=hf")
    assert code == 5
    assert "end.json: unreadable, not as zoo writes it" in message
    assert not Path("out").exists()


@pytest.mark.parametrize("how", [one for one in DAMAGES if one != "truncated"])
def test_damaged_metrics_are_named_wherever_they_are_read(how, run, damage_file, zoo):
    damage_file("metrics.csv", how)
    with pytest.raises(DataError, match=r"metrics\.csv: "):
        api.Run(run).history()
    # a run that goes on would lose its rows
    with pytest.raises(DataError, match=r"metrics\.csv: "):
        MetricsFile(run / "metrics.csv", keep_until=1)
    code, _, message = zoo("diagnose", run, CPU)
    assert (code, "metrics.csv: " in message) == (4, True)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it has no column step"),
        ("nonsense\n", "it has no column step"),
        ("step,loss\n0,1.0,3\n", "line 2 is no row of 2 values"),
        ("step,loss\n0\n", "line 2 is no row of 2 values"),
        ("step,loss\n0,1.0\n-1,1.0\n", "line 3 has '-1' as step"),
        ("step,loss\n,1.0\n", "line 2 has '' as step"),
        ("step,loss\n0,high\n", "line 2 has 'high' as loss"),
        ('step,loss\n0,"1.0\n', "unexpected end of data"),
        ("step,loss\n0,\0\n", "line 2 has '\\x00' as loss"),
    ],
)
def test_a_row_that_zoo_has_not_written_is_named(text, problem, tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text(text)
    with pytest.raises(DataError) as failed:
        MetricsFile(path)
    assert f"metrics.csv: not as zoo writes it, {problem}" in str(failed.value)


@pytest.mark.parametrize("metrics", [3, [1.0], {"test/loss": "low"}, {"test/loss": None}])
def test_metrics_that_are_no_numbers_are_named(metrics, run, damage_file):
    damage_file("end.json", "empty")
    (run / "end.json").write_text(json.dumps({"metrics": metrics}))
    with pytest.raises(DataError, match="its metrics are no numbers"):
        _ = api.Run(run).metrics


@pytest.mark.parametrize("how", DAMAGES)
def test_an_evaluation_that_is_damaged_is_named_before_the_work(how, run, damage_file, zoo):
    (run / "evaluation.json").write_text("{}")
    damage_file("evaluation.json", how)
    code, _, message = zoo("diagnose", run, CPU)
    assert (code, "evaluation.json: " in message) == (4, True)
    restore(run / "evaluation.json", b"")
    (run / "evaluation.json").unlink()
