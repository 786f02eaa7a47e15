"""What speaks against a record is named on its page: every fault is planted, and found."""

from dataclasses import replace
from pathlib import Path

from comparisons import edit_cell, plant_cells, read_cell
from tiny import TINY

from zoo.comparison.record_file import write_cells
from zoo.comparison.results import Comparison

BASE = [
    "vit_comrope",
    *(word for word in TINY if "encoding" not in word),
    "trainer.num_threads=1",
    "diagnostics.every_n_steps=null",
    "encodings=[none,learned]",
    "tune.optim.lr=[1e-3,1e-1,log]",
    "studies=3",
    "budget=2",
    "minutes=1e-6",
    "to=c",
]


def test_every_planted_fault_is_named_on_the_page(compared):
    early, late = "none > learned", "none > learned by 0.01"
    assert compared(*BASE, f"hypotheses=[{early}]")[0] == 0
    plant_cells("c", {"none": 0.9, "learned": 0.8}, 3)
    assert compared("rebuild", "c")[0] == 0
    found = Comparison.read(Path("c/results.json"))
    assert found.findings == ()
    assert (
        "alert" not in Path("c/index.html").read_text().partition("<h1>")[2].partition("<figure")[0]
    )

    # a hypothesis that was written when the cells were there
    assert compared(*BASE, f"hypotheses=[{early},{late}]")[0] == 0
    # a digit changed by hand
    edit_cell("c", "none-0-0", test={"test/accuracy": 0.99})
    # a trial tested although validation chose another
    leaked = replace(read_cell("c", "none-1-1"), test={"test/accuracy": 0.9})
    # a cell of a study trained elsewhere
    cell = read_cell("c", "learned-2-0")
    elsewhere = replace(cell.environment, devices={"processor": "another"})
    write_cells(Path("c"), [leaked, replace(cell, environment=elsewhere)])

    code, out, message = compared("rebuild", "c")
    assert code == 4, message  # the edited cell counts nowhere
    found = Comparison.read(Path("c/results.json"))
    told = {
        "edited": "cells.jsonl: none-0-0: its content does not fit its SHA-256",
        "split block": "the cells of study 2 were trained on several machines",
        "test leak": "none, study 1: none-1-1 was tested, though validation chose none-1-0",
        "late hypothesis": f"{late}: written after 12 runs had ended, so no prediction",
    }
    assert [one.kind for one in found.findings] == [*told]
    page = Path("c/index.html").read_text()
    for kind, text in told.items():
        assert f"- {kind}: {text}" in out
        assert f"<b>{kind.capitalize()}</b>" in page
        plain_page = page.replace("<wbr>", "").replace("&gt;", ">").replace("\u200b", "")
        assert text in plain_page
