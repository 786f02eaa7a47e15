"""Every encoding in a model of every family: the table of docs/equip.md, and what models then do."""

import importlib
import sys
from pathlib import Path

import pytest
from without_torchvision import import_timm

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "build"))
page = importlib.import_module("equip_page")
sys.path.pop(0)


@pytest.mark.filterwarnings("ignore")  # transformers renames arguments
@pytest.mark.parametrize("title", page.COLUMNS)
def test_encodings_do_in_a_family_what_the_table_says(title):
    if title.startswith("timm"):
        import_timm()
    elif not title.startswith(("`nn", "the same")):
        pytest.importorskip("transformers").logging.set_verbosity_error()
    table = page.read_table(page.PAGE.read_text(encoding="utf-8"))
    assert page.try_column(title) == page.read_answers(table)[title], (
        "python docs/build/equip_page.py"
    )
