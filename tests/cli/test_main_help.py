"""`zoo COMMAND --help` lists every option of the command, with type, default and comment."""

import sys
from importlib import import_module

import pytest

from zoo.cli.commands import COMMANDS
from zoo.cli.main import find_command
from zoo.options.description import format_options
from zoo.options.signature import fields, read_class

SOURCES = [
    pytest.param(command, prefix, source, id=f"{command}-{source.partition(':')[2]}")
    for command in COMMANDS
    for prefix, source in find_command(command).options
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_shows_an_example(command, zoo, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["zoo", command, "--help"])
    with pytest.raises(SystemExit):
        zoo(command, "--help")
    module = find_command(command)
    assert f"zoo {command}" in module.example
    assert not module.summary.endswith("...")


@pytest.mark.parametrize(("command", "prefix", "source"), SOURCES)
def test_every_option_is_listed_with_type_default_and_comment(command, prefix, source):
    module, _, name = source.partition(":")
    right = fields(getattr(import_module(module), name))
    listed = read_class(source)
    assert [*listed] == [*right]
    for key, option in listed.items():
        assert (option.annotation, option.default) == (right[key].annotation, right[key].default)
        assert option.comment, key
    text = format_options([(prefix, source)])
    assert all(f"    {prefix}{key}=" in text for key in right)


def test_types_read_as_users_write_them():
    text = format_options([("trainer.", "zoo.config.schema:TrainerOptions")])
    for line in (
        "trainer.max_epochs=null  (int >= 1 or null)",
        "trainer.devices=auto  (int >= 1 or str)",
        "trainer.strategy=auto  (auto|ddp|fsdp)",
        "trainer.compile=false  (bool or blocks)",
        "trainer.logger=[tensorboard]  (list of name or mapping)",
        "trainer.early_stopping=null  (mapping or null)",
    ):
        assert line in text


def test_every_options_class_belongs_to_a_command():
    listed = {source for command in COMMANDS for _, source in find_command(command).options}
    for source in (
        "zoo.benchmark.runner:BenchOptions",
        "zoo.api.comparison:CompareOptions",
        "zoo.config.schema:DiagnosticsOptions",
        "zoo.config.schema:EvaluateOptions",
        "zoo.config.schema:GenerateOptions",
        "zoo.config.schema:PredictOptions",
        "zoo.config.schema:TrainerOptions",
        "zoo.formats.convert:ConvertOptions",
        "zoo.diagnosis.diagnose:DiagnoseOptions",
        "zoo.diagnosis.atlas:AtlasOptions",
        "zoo.evaluation.extend:ExtendOptions",
        "zoo.launch.launch:LaunchOptions",
        "zoo.laws.run:VerifyOptions",
    ):
        assert source in listed
