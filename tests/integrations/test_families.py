"""The table of families in docs/equip.md, whose cheap checks are measured again."""

import importlib
import sys
import warnings
from pathlib import Path

import pytest
import torch
from parts import mark_others
from without_torchvision import import_timm

transformers = pytest.importorskip("transformers")

from zoo.errors import OptionError  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "build"))
page = importlib.import_module("equip_families")
sys.path.pop(0)

ROWS = page.list_rows()
RECORDED = page.read_record()["rows"]
FIRST = {(row.library, row.kind, row.own): title for title, row in reversed(ROWS.items())}.values()
"""The first family of each kind of model with each kind of positions of its own."""


@pytest.fixture(autouse=True)
def _quiet():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("title", mark_others(ROWS, FIRST))
def test_a_family_does_what_the_table_says(title):
    if ROWS[title].library == "timm":
        import_timm()
    expected = {column: RECORDED[title][column] for column in page.CHEAP}
    assert page.measure(ROWS[title], page.CHEAP) == expected, "python docs/build/equip_families.py"


def test_the_page_shows_the_recorded_answers():
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.write_table(RECORDED) in text
    kinds = dict.fromkeys(("transformers", "timm", "torch"), 0)
    for row in ROWS.values():
        kinds[row.library] += 1
    assert kinds["transformers"] >= 30
    assert kinds["timm"] >= 12
    assert kinds["torch"] >= 3


@torch.no_grad()
def test_a_check_notices_a_wrong_model():
    row = page.list_rows()["llama"]

    def build_wrong():
        model = row.build()
        model.register_forward_hook(lambda module, args, out: spoil(out))
        return model

    def spoil(out):
        out["logits"] = out["logits"] + torch.linspace(0, 1, out["logits"].shape[1])[:, None]
        return out

    wrong = page.Row(
        library="transformers", build=build_wrong, kind="decoder", encoding="fox", own="rope"
    )
    with pytest.raises(AssertionError, match="differs by"):
        page.measure(wrong, ["cache"])


def test_a_family_outside_the_interface_is_refused_by_what_it_does():
    import zoo

    config = transformers.BloomConfig(vocab_size=9, hidden_size=16, n_layer=1, n_head=2)
    with pytest.raises(OptionError, match="no attention by transformers' interface"):
        zoo.equip(transformers.BloomForCausalLM(config), "alibi")
