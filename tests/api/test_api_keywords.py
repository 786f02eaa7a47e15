"""Options of commands are keywords of the functions, which type checkers and editors see."""

import inspect

import pytest

import zoo
from zoo.api.comparison import (
    CheckOptions,
    ClaimsOptions,
    CompareKeywords,
    CompareOptions,
    PackOptions,
    RankOptions,
    RebuildOptions,
    SuiteKeywords,
)
from zoo.api.tools import BenchKeywords
from zoo.benchmark.runner import BenchOptions
from zoo.comparison.suite_run import FIXED
from zoo.diagnosis.atlas import AtlasOptions
from zoo.diagnosis.diagnose import DiagnoseOptions
from zoo.launch.slurm_executor import SlurmExecutor
from zoo.laws.run import VerifyOptions
from zoo.options.signature import fields

KEYWORDS = {
    "compare": (CompareKeywords, CompareOptions, SlurmExecutor),
    "suite": (SuiteKeywords, CompareOptions, SlurmExecutor),
    "bench": (BenchKeywords, BenchOptions),
}
"""{function: its keywords for type checkers, and the dataclasses of its options}"""


@pytest.mark.parametrize("name", KEYWORDS)
def test_type_checkers_see_every_option_as_a_keyword(name):
    keywords, *classes = KEYWORDS[name]
    options = {key for one in classes for key in fields(one)}
    assert {*keywords.__annotations__} == options - {*(FIXED if name == "suite" else ())}


DECLARED = {
    "rebuild_comparison": RebuildOptions,
    "rank_comparisons": RankOptions,
    "judge_comparison": ClaimsOptions,
    "merge_comparisons": PackOptions,
    "pack_comparison": PackOptions,
    "check_comparison": CheckOptions,
    "verify": VerifyOptions,
    "diagnose": DiagnoseOptions,
    "atlas": AtlasOptions,
}
"""{function: the dataclass of its options, which are keywords of the function}"""


@pytest.mark.parametrize("name", DECLARED)
def test_keywords_have_the_defaults_of_the_command(name):
    parameters = inspect.signature(getattr(zoo, name)).parameters
    for key, option in fields(DECLARED[name]).items():
        assert parameters[key].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[key].default == option.default, key


def test_no_public_function_takes_untyped_keywords_or_texts_of_the_command_line():
    for name in zoo.__all__:
        function = getattr(zoo, name)
        if not inspect.isfunction(function) or not function.__module__.startswith("zoo.api."):
            continue
        parameters = inspect.signature(function).parameters
        assert not {"command", "show", "options"} & {
            key for key, one in parameters.items() if one.kind is not one.VAR_KEYWORD
        }, name
        rest = [one for one in parameters.values() if one.kind is one.VAR_KEYWORD]
        assert all(one.annotation.startswith("Unpack[") for one in rest), name
