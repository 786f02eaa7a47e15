"""The same fault in Python and on the command line: each message is spelled for its reader."""

import ast
import inspect
import logging
import re
from pathlib import Path

import pytest
from untrained import write_checkpoint

import zoo
from zoo.cli import main
from zoo.cli.commands import COMMANDS
from zoo.cli.edge import COMMAND_LINE
from zoo.cli.main import CommandLineFormatter
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
    "nothing to map": (lambda: zoo.atlas([]), ["atlas"], "nothing to map"),
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
    "a wrong type of an option": (
        lambda: zoo.bench(["rope"], rounds="many"),
        ["bench", "rope", "rounds=many"],
        "rounds: expected an integer, got 'many'",
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
    "an unknown format": (
        lambda: zoo.export("nowhere", "out", to="safetensor"),
        ["export", "nowhere", "out", "to=safetensor"],
        "to: expected",
    ),
}
"""What raises in Python, the words that do the same, and what both messages say."""
MISSPELT = {
    "audit": (
        "lawss",
        "laws",
        lambda **options: zoo.audit("nowhere", **options),
        ["nowhere", "lawss=1"],
    ),
    "fit": (
        "resumme",
        "resume",
        lambda **wrong: zoo.fit("vit_none", **wrong),
        ["vit_none", "--resumme", "auto"],
    ),
    "eval": (
        "strid",
        "stride",
        lambda **wrong: zoo.evaluate("run", **wrong),
        ["run", "evaluate.strid=1"],
    ),
    "predict": (
        "tpo",
        "top",
        lambda **wrong: zoo.predict("run", "a.png", **wrong),
        ["run", "a.png", "tpo=1"],
    ),
    "generate": (
        "tokns",
        "tokens",
        lambda **wrong: zoo.generate("run", "a", **wrong),
        ["run", "prompt=a", "tokns=1"],
    ),
    "diagnose": (
        "smaples",
        "samples",
        lambda **wrong: zoo.diagnose("run", **wrong),
        ["run", "smaples=1"],
    ),
    "extend": ("stepps", "steps", lambda **wrong: zoo.extend("run", **wrong), ["run", "stepps=1"]),
    "atlas": (
        "smaples",
        "samples",
        lambda **wrong: zoo.atlas("run", **wrong),
        ["run", "smaples=1"],
    ),
    "bench": (
        "againts",
        "against",
        lambda **wrong: zoo.bench(["rope"], **wrong),
        ["rope", "againts=1"],
    ),
    "compare": (
        "seedz",
        "seeds",
        lambda **wrong: zoo.compare("vit_none", encodings=["none", "rope_axial"], **wrong),
        ["vit_none", "encodings=[none,rope_axial]", "seedz=1"],
    ),
    "compare rebuild": (
        "mesure",
        "measure",
        lambda **wrong: zoo.rebuild_comparison("run", **wrong),
        ["run", "mesure=1"],
    ),
    "compare rank": (
        "too",
        "to",
        lambda **wrong: zoo.rank_comparisons(["run"], **wrong),
        ["run", "too=1"],
    ),
    "compare merge": (
        "too",
        "to",
        lambda **wrong: zoo.merge_comparisons(["run"], **wrong),
        ["run", "too=1"],
    ),
    "compare pack": (
        "too",
        "to",
        lambda **wrong: zoo.pack_comparison("run", **wrong),
        ["run", "too=1"],
    ),
    "compare claims": (
        "too",
        "to",
        lambda **wrong: zoo.judge_comparison("run", **wrong),
        ["run", "too=1"],
    ),
    "compare check": (
        "cel",
        "cell",
        lambda **wrong: zoo.check_comparison("run", **wrong),
        ["run", "cel=1"],
    ),
    "convert": ("too", "to", lambda **wrong: zoo.convert("run", **wrong), ["run", "too=1"]),
    "export": (
        "pusch",
        "push",
        lambda **wrong: zoo.export("run", "out", "hf", **wrong),
        ["run", "out", "to=hf", "pusch=1"],
    ),
    "verify": ("axs", "axes", lambda **wrong: zoo.verify(["rope"], **wrong), ["rope", "axs=1"]),
}
"""Of each command a misspelt option, the right one, the call in Python and the words."""
ONLY_WORDS = {"launch", "list", "show", "diff", "new", "doctor"}
"""Commands without a function in Python."""
MISSING = {
    "fit": (
        lambda: zoo.fit("vit_none", resume="nowhere"),
        ["fit", "vit_none", "--resume", "nowhere"],
    ),
    "eval": (lambda: zoo.evaluate("nowhere"), ["eval", "nowhere"]),
    "predict": (lambda: zoo.predict("nowhere", "a.png"), ["predict", "nowhere", "a.png"]),
    "generate": (lambda: zoo.generate("nowhere", "a"), ["generate", "nowhere", "prompt=a"]),
    "diagnose": (lambda: zoo.diagnose("nowhere"), ["diagnose", "nowhere"]),
    "atlas": (lambda: zoo.atlas("nowhere"), ["atlas", "nowhere"]),
    "extend": (lambda: zoo.extend("nowhere"), ["extend", "nowhere"]),
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


def test_every_command_has_a_misspelt_option():
    assert MISSPELT.keys() | ONLY_WORDS == set(COMMANDS)


@pytest.mark.parametrize("command", MISSPELT)
def test_a_misspelt_option_is_named_with_the_right_one(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if command in ("eval", "generate", "predict"):
        write_checkpoint(Path("run"), "lm_rope", ["model.dim=16", "model.depth=1"])
    wrong, right, call, words = MISSPELT[command]
    python, command_line = read_messages(
        lambda: call(**{wrong: 1}), [*command.split(), *words], capsys
    )
    assert f"argument: {wrong}: unknown key; did you mean {right}?" in python
    assert "command line" not in python
    assert "--" not in python
    assert re.search(
        rf"command line: \S*{wrong}: unknown (key|argument); did you mean \S*{right}\?",
        command_line,
    )


def list_guarded():
    functions = [one for name in zoo.__all__ if inspect.isfunction(one := getattr(zoo, name))]
    of_api = [one for one in functions if one.__module__.startswith("zoo.api")]
    # build_model draws from the caller's random state, which a guard would put back
    return [one for one in of_api if hasattr(one, "__wrapped__")]


def test_every_function_names_an_argument_of_a_wrong_type():
    checked = set()
    for function in list_guarded():
        for key, parameter in inspect.signature(function).parameters.items():
            if parameter.annotation.startswith(("str", "bool", "Mapping", "Sequence[str | Path]")):
                checked.add(key)
                with pytest.raises(zoo.RecipeError, match=f"argument: {key}: expected .*, got 3"):
                    function(**{key: 3})
    assert {
        "run",
        "runs",
        "paths",
        "recipe",
        "folder",
        "folders",
        "source",
        "vary",
        "wait",
    } < checked
    with pytest.raises(
        zoo.RecipeError, match=r"paths: expected a path or a list of paths, got .3."
    ):
        zoo.predict("run", [3])
    with pytest.raises(zoo.RecipeError, match=r"overrides: expected a mapping {key: value}, got 3"):
        zoo.fit("vit_none", 3)


def test_a_key_without_its_section_is_completed(capsys):
    wrong = {"lr": "optim.lr", "depth": "model.depth", "resolutions": "evaluate.resolutions"}
    assert main(["fit", "vit_none", *(f"{key}=3" for key in wrong)]) == 2
    told = capsys.readouterr().err
    for key, full in wrong.items():
        assert f"{key}: unknown key; did you mean {full}?" in told


def test_nothing_to_merge_is_told():
    with pytest.raises(zoo.RecipeError, match="no comparison to merge; name"):
        zoo.merge_comparisons([], to="joined")


def test_every_function_refuses_unknown_keywords_and_keeps_its_signature():
    guarded = list_guarded()
    # and zoo.load, zoo.estimate_comparison, both of suites, the three audits without a command
    assert len(guarded) == len(MISSPELT) + 7
    for function in guarded:
        assert inspect.signature(function) == inspect.signature(inspect.unwrap(function))
        parameters = inspect.signature(function).parameters.values()
        if not any(one.kind is one.VAR_KEYWORD for one in parameters):
            with pytest.raises(zoo.RecipeError, match="argument: qqqq: unknown key; known are"):
                function(qqqq=1)


def test_a_key_of_the_recipe_is_no_keyword():
    with pytest.raises(zoo.RecipeError, match=r'trainer: .* write overrides={"trainer": \.\.\.}'):
        zoo.fit("vit_none", trainer={"max_epochs": 1})


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
