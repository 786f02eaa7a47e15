"""Classes of options that are built from the text of their files, before torch is imported."""

import os
import subprocess
import sys

import pytest

from zoo import registry

SCAN = """
import dataclasses, sys, types
from typing import get_args

from zoo import registry
from zoo.options.signature import ModuleNames, check_early, read_options

def list_classes(annotation):
    if dataclasses.is_dataclass(annotation):
        yield annotation
        for field in dataclasses.fields(annotation):
            yield from list_classes(field.type)
    for part in get_args(annotation):
        yield from list_classes(part)

def list_codes(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from list_codes(constant)

def scan(kind, name, seen):
    for option in read_options(kind, name).values():
        for cls in list_classes(option.annotation):
            functions = [one for one in vars(cls).values() if isinstance(one, types.FunctionType)]
            for function in functions:
                names = function.__globals__
                if not isinstance(names, ModuleNames):
                    continue  # a method that dataclasses made, or a class that is imported
                for code in list_codes(function.__code__):
                    for word in code.co_names:
                        if word in names.bindings:
                            names[word]
                            seen.add(f"{cls.__name__}.{word}")

seen = set()
for kind in sys.argv[1:]:
    for name in registry.names(kind):
        check_early(lambda: scan(kind, name, seen))
assert "torch" not in sys.modules
print(*seen)
"""
"""Evaluates all names of their files that the methods of such classes use."""


def run_python(*words):
    """Run Python in a process that has not imported torch, without plug-ins."""
    environment = {**os.environ, "ZOO_PLUGINS": ""}
    command = [sys.executable, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


def test_methods_of_options_find_the_names_of_their_files():
    kinds = [kind for kind in registry.RECIPE_KINDS if kind != "loggers"]
    done = run_python("-c", SCAN, *kinds)
    assert not done.returncode, done.stderr
    assert {"Scaling.RULES", "Scaling.RULE_OPTIONS", "Scaling.REQUIRED"} <= {*done.stdout.split()}


@pytest.mark.parametrize(
    ("options", "code"),
    [
        pytest.param("{rule: llama3, factor: 8}", 0, id="right", marks=pytest.mark.nightly),
        pytest.param("{rule: ntk, factor: 8, mscale: 2}", 2, id="wrong"),
    ],
)
def test_a_rule_of_scaling_is_checked_on_the_command_line(options, code):
    done = run_python("-m", "zoo", "show", "lm_rope", f"model.encoding.scaling={options}")
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    if code:
        assert "ntk has no mscale; only yarn has one" in done.stderr
