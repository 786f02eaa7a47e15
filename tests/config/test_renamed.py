"""Keys and names of version 0.1.0 are answered with the new ones."""

from __future__ import annotations

import re

import pytest

from zoo.config import load
from zoo.config.command_line import parse_overrides
from zoo.config.schema import Sections
from zoo.config.signature import fields, read_options
from zoo.config.validate import RENAMED_KEYS, RENAMED_MEMBERS
from zoo.errors import RecipeError
from zoo.registry import names

KINDS = {"model": "models", "data": "data", "task": "tasks", "optim": "optim"}


def list_words(section: str) -> set[str]:
    """Every option that a section may hold, of any member."""
    if section == "encoding":
        return {word for name in names("encodings") for word in read_options("encodings", name)}
    if section in KINDS:
        kind = KINDS[section]
        return {word for name in names(kind) for word in read_options(kind, name)}
    if section == "block":
        return set(fields(read_options("models", "vit")["block"].annotation))
    return set(fields(fields(Sections)[section].annotation))


@pytest.mark.parametrize(("old", "new"), RENAMED_KEYS.items())
def test_a_renamed_key_is_gone_and_its_new_word_is_there(old: str, new: str) -> None:
    section, _, word = old.rpartition(".")
    known = list_words(section.rpartition(".")[2])
    assert new in known
    if section != "model.encoding":  # where one encoding's old word may be another's own
        assert word not in known


@pytest.mark.parametrize(("old", "new"), RENAMED_MEMBERS.items())
def test_a_renamed_member_is_gone_and_its_new_name_is_there(old: tuple[str, str], new: str) -> None:
    kind, name = old
    assert new in names(kind)
    assert name not in names(kind)


def test_old_words_are_answered_with_new_ones() -> None:
    overrides = ["task=fill", "model.patch=2", "optim.warmup=0", "trainer.save=async"]
    overrides += ["model.block.order=post", "model.encoding=[{name: rope, fraction: 0.5}]"]
    with pytest.raises(RecipeError) as caught:
        load("vit_comrope", parse_overrides(overrides))
    assert {issue.remedy for issue in caught.value.issues} == {
        "renamed to masked_lm",
        "renamed to model.patch_size",
        "renamed to optim.warmup_ratio",
        "renamed to trainer.async_checkpoint",
        "renamed to model.block.norm_position",
        "renamed to model.encoding.0.rotary_fraction",
    }
    assert not [issue for issue in caught.value.issues if re.search("did you mean", issue.remedy)]
