"""Every encoding in a model of every family: the table of docs/equip.md, and what models then do."""

import importlib
import sys
from pathlib import Path

import pytest
from parts import draw_part, run_parts
from without_torchvision import import_timm

import zoo

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "build"))
page = importlib.import_module("equip_page")
sys.path.pop(0)


@pytest.mark.filterwarnings("ignore")  # transformers renames arguments
@pytest.mark.usefixtures("equal_models_examined_once")
@pytest.mark.parametrize("title", page.COLUMNS)
@run_parts(3)
def test_encodings_do_in_a_family_what_the_table_says(title, step):
    if title.startswith("timm"):
        import_timm()
    elif not title.startswith(("`nn", "the same")):
        pytest.importorskip("transformers").logging.set_verbosity_error()
    table = page.read_answers(page.read_table(page.PAGE.read_text(encoding="utf-8")))[title]
    assert [*table] == [*zoo.encoding_names()]
    names = draw_part([*table], step, [*page.COLUMNS].index(title))
    answers = page.try_column(title, names)
    assert answers == {name: table[name] for name in names}, "python docs/build/equip_page.py"
