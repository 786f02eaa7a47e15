"""The same fault in Python and on the command line: each message is spelled for its reader."""

import ast
import logging

import pytest

import zoo
from zoo.cli import main
from zoo.cli.edge import COMMAND_LINE, CommandLineFormatter
from zoo.errors import ARGUMENT, ConfigIssue, Message, Setting, ZooError


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        (Setting("resume", "auto"), "--resume auto"),
        (Setting("wait", True), "--wait"),
        (Setting("run_dir"), "--run-dir"),
        (Setting("optim.lr", 0.1), "optim.lr=0.1"),
        (Setting("seeds", [0, None, True]), "seeds=[0,null,true]"),
    ],
)
def test_a_setting_is_spelled_as_a_user_types_it(setting, text):
    assert COMMAND_LINE.spell(setting) == text


def test_logged_messages_are_spelled_and_left_unchanged_for_other_handlers():
    message = Message("add ", Setting("resume", "auto"))
    formatter = CommandLineFormatter("%(message)s")
    for msg, args in ((message, ()), ("%s", (message,))):
        record = logging.LogRecord("zoo", logging.INFO, "", 0, msg, args, None)
        assert formatter.format(record) == "add --resume auto"
        assert record.getMessage() == 'add resume="auto"'


FAULTS = {
    "an unknown key": (
        lambda: zoo.fit("vit_none", {"model.depht": 8}),
        ["fit", "vit_none", "model.depht=8"],
        "model.depht: unknown key; did you mean model.depth?",
    ),
    "a wrong type": (
        lambda: zoo.fit("vit_none", {"model.depth": "many"}),
        ["fit", "vit_none", "model.depth=many"],
        "model.depth: expected an integer, got 'many'",
    ),
    "an unknown encoding": (
        lambda: zoo.fit("vit_none", {"model.encoding": "ropee"}),
        ["fit", "vit_none", "model.encoding=ropee"],
        "there is no 'ropee' among encodings; did you mean rope?",
    ),
    "a recipe to show": (
        lambda: zoo.load_recipe("vit_none", {"optim.lr": "x"}),
        ["show", "vit_none", "optim.lr=x"],
        "optim.lr: expected a finite number, got 'x'",
    ),
    "nothing to predict": (
        lambda: zoo.predict("nowhere", []),
        ["predict", "nowhere"],
        "nothing to predict",
    ),
    "nothing to diagnose": (lambda: zoo.diagnose([]), ["diagnose"], "nothing to diagnose"),
    "an unknown option of a diagnosis": (
        lambda: zoo.diagnose("nowhere", sample=1),
        ["diagnose", "nowhere", "sample=1"],
        "sample: unknown key; did you mean samples?",
    ),
    "nothing to compare": (
        lambda: zoo.compare("vit_none"),
        ["compare", "vit_none"],
        "nothing varies",
    ),
    "an unknown encoding to compare": (
        lambda: zoo.compare("vit_none", encodings=["ropee"]),
        ["compare", "vit_none", "encodings=[ropee]"],
        "there is no 'ropee' among encodings; did you mean rope?",
    ),
    "an unknown encoding to measure": (
        lambda: zoo.bench(["ropee"]),
        ["bench", "ropee"],
        "there is no 'ropee' among encodings; did you mean rope?",
    ),
    "an unknown option of a benchmark": (
        lambda: zoo.bench(["rope"], rouns=2),
        ["bench", "rope", "rouns=2"],
        "rouns: unknown key; did you mean rounds?",
    ),
    "a wrong type of an option": (
        lambda: zoo.bench(["rope"], rounds="many"),
        ["bench", "rope", "rounds=many"],
        "rounds: expected an integer, got 'many'",
    ),
    "an unknown option of a comparison": (
        lambda: zoo.compare("vit_none", encodings=["none", "learned"], seedz=2),
        ["compare", "vit_none", "encodings=[none,learned]", "seedz=2"],
        "seedz: unknown key; did you mean seeds?",
    ),
    "a tuned key that is wrong": (
        lambda: zoo.compare(
            "vit_none",
            encodings=["none", "learned"],
            tune={"optim.lrr": [1e-3, 1e-2]},
            studies=1,
            budget=2,
        ),
        [
            "compare",
            "vit_none",
            "encodings=[none,learned]",
            "tune.optim.lrr=[1e-3,1e-2]",
            "studies=1",
            "budget=2",
        ],
        "optim.lrr: unknown key; did you mean optim.lr?",
    ),
    "an unknown option of an export": (
        lambda: zoo.export("nowhere", "out", to="safetensors", pusch="me/it"),
        ["export", "nowhere", "out", "to=safetensors", "pusch=me/it"],
        "pusch: unknown key; did you mean push?",
    ),
    "an unknown format": (
        lambda: zoo.export("nowhere", "out", to="safetensor"),
        ["export", "nowhere", "out", "to=safetensor"],
        "to: expected",
    ),
    "an unknown option of a conversion": (
        lambda: zoo.convert("nowhere", too="out"),
        ["convert", "nowhere", "too=out"],
        "too: unknown key; did you mean to?",
    ),
    "an unknown option of laws": (
        lambda: zoo.verify(["rope"], axs=1),
        ["verify", "rope", "axs=1"],
        "axs: unknown key; did you mean axes?",
    ),
}
"""What raises in Python, the words that do the same, and what both messages say."""
MISSING = {
    "fit": (
        lambda: zoo.fit("vit_none", resume="nowhere"),
        ["fit", "vit_none", "--resume", "nowhere"],
    ),
    "eval": (lambda: zoo.evaluate("nowhere"), ["eval", "nowhere"]),
    "predict": (lambda: zoo.predict("nowhere", "a.png"), ["predict", "nowhere", "a.png"]),
    "generate": (lambda: zoo.generate("nowhere", "a"), ["generate", "nowhere", "prompt=a"]),
    "diagnose": (lambda: zoo.diagnose("nowhere"), ["diagnose", "nowhere"]),
    "export": (
        lambda: zoo.export("nowhere", "out", to="safetensors"),
        ["export", "nowhere", "out", "to=safetensors"],
    ),
    "convert": (lambda: zoo.convert("nowhere"), ["convert", "nowhere"]),
}


def read_messages(call, words, capsys):
    """Return the message of Python and that of the command line."""
    with pytest.raises((ZooError, ValueError)) as caught:
        call()
    capsys.readouterr()
    assert main(words) == caught.value.code
    return str(caught.value), capsys.readouterr().err


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_reads_the_same_but_for_its_origin(fault, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    call, words, problem = FAULTS[fault]
    python, command_line = read_messages(call, words, capsys)
    assert problem in python
    assert problem in command_line
    assert "argument: " in python
    assert "command line: " in command_line
    assert "command line" not in python
    assert "--" not in python


@pytest.mark.parametrize("command", MISSING)
def test_a_missing_run_reads_the_same(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    python, command_line = read_messages(*MISSING[command], capsys)
    assert python.startswith("nowhere: no such")
    assert command_line == f"zoo: {python}\n"


def test_a_run_directory_that_exists_is_explained_in_the_words_of_each(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "recipe.yaml").touch()
    python, command_line = read_messages(
        lambda: zoo.fit("vit_none", run_dir="taken"),
        ["fit", "vit_none", "--run-dir", "taken"],
        capsys,
    )
    assert (
        'argument: run_dir: taken exists already; name a new directory, or add resume="auto"'
        in (python)
    )
    assert "--" not in python
    assert "command line: --run-dir: taken exists already" in command_line
    assert "add --resume auto" in command_line


def test_python_quotes_text_so_that_it_can_be_pasted():
    for text in ("plain", 'say "x"', "it's", "back\\slash", "Größe"):
        spelled = str(Message("write ", Setting("stop", text)))
        assert ast.literal_eval(spelled.removeprefix("write stop=")) == text


@pytest.mark.parametrize("value", [[0, 7], {"a": [1]}, None, 0.1, "auto"])
def test_equal_issues_are_reported_once_whatever_value_they_name(value):
    issues = [ConfigIssue(ARGUMENT, "k", "p", Message("x ", Setting("k", value)))] * 2
    assert len(dict.fromkeys(issues)) == 1
