"""What `zoo show` and the pages say of the options of encodings and mixers."""

import re

import pytest

import zoo
from zoo import registry
from zoo.cli.describe import describe_options

MEMBERS = [("encodings", name) for name in zoo.encoding_names()]
MEMBERS += [("mixers", name) for name in registry.names("mixers")]


@pytest.mark.parametrize(("kind", "name"), MEMBERS)
def test_every_option_has_its_type_its_default_and_what_it_does(kind, name):
    cls = registry.find(kind, name)
    for key, text in describe_options(cls, kind).items():
        nested = "." in key
        assert re.fullmatch(r"[^;]+\. .+" if nested else r"[^;]+; .+?\. [A-Z\[].+", text), (
            key,
            text,
        )


def test_an_option_without_a_value_has_the_default_of_its_class():
    described = describe_options(zoo.encoding_class("rope_axial"))
    assert described["base"].startswith("float >= 1; default 100.0. ")
    assert "; default index. " in described["coordinates"]
    assert "default true" in described["shared"]


def test_an_argument_of_a_base_is_described_in_a_class_without_one():
    class Inherited(zoo.encoding_class("rope")):
        """As rope."""

    assert "Share of the channels" in describe_options(Inherited)["rotary_fraction"]
