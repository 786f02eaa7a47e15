"""`zoo COMMAND --help` lists every option of the command, with type, default and comment."""

import dataclasses
import sys
from importlib import import_module

import pytest

from zoo.cli.main import COMMANDS, read_options

SOURCES = [
    pytest.param(command, prefix, source, id=f"{command}-{source.partition(':')[2]}")
    for command, module in COMMANDS.items()
    for prefix, source in getattr(module, "OPTIONS", ())
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_shows_an_example(command, zoo, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["zoo", command, "--help"])
    with pytest.raises(SystemExit):
        zoo(command, "--help")
    assert f"zoo {command}" in COMMANDS[command].EXAMPLE
    assert not COMMANDS[command].SUMMARY.endswith("...")


@pytest.mark.parametrize(("command", "prefix", "source"), SOURCES)
def test_every_option_is_listed_with_type_default_and_comment(command, prefix, source):
    module, _, name = source.partition(":")
    fields = dataclasses.fields(getattr(import_module(module), name))
    listed = {option.key: option for option in read_options(source, prefix)}
    assert [*listed] == [prefix + field.name for field in fields]
    for option in listed.values():
        assert option.kind, option
        assert option.comment, option
        assert option.key in option.format()


def test_every_options_class_belongs_to_a_command():
    listed = {
        source for module in COMMANDS.values() for _, source in getattr(module, "OPTIONS", ())
    }
    for source in (
        "zoo.benchmark.runner:BenchOptions",
        "zoo.comparison.request:CompareOptions",
        "zoo.config.schema:DiagnosticsOptions",
        "zoo.config.schema:EvaluateOptions",
        "zoo.config.schema:GenerateOptions",
        "zoo.config.schema:PredictOptions",
        "zoo.config.schema:TrainerOptions",
        "zoo.weights.convert:ConvertOptions",
        "zoo.diagnosis.diagnose:DiagnoseOptions",
        "zoo.launch.launch:LaunchOptions",
        "zoo.laws.run:VerifyOptions",
    ):
        assert source in listed
