"""A result as a table, as a file that is read again, and as a picture."""

import csv
import importlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from latex import read_table
from PIL import Image

from zoo.benchmark.plots import draw_result
from zoo.benchmark.protocol import SHAPES
from zoo.benchmark.report import format_result, list_other_files, prepare_folder, write_result
from zoo.benchmark.result import BenchResult, BenchRow, compute_quartiles, merge_references
from zoo.errors import DataError, RecipeError
from zoo.reporting.tables import escape_latex, format_markdown

ROW = BenchRow(
    measure="train",
    unit="seconds",
    length=32,
    name="alibi",
    library=None,
    counterpart=None,
    group=0,
    parameters=1234,
    backend="sdpa",
    values=(0.001, 0.002, 0.003),
    ratios=(1.0, 1.5, 2.0),
    counterpart_ratios=(),
    amount=64,
    rate="tokens",
)
REFERENCE = replace(ROW, name="rope", ratios=(1.0, 1.0, 1.0))
PEER = replace(
    ROW,
    name="theirs alibi",
    library="theirs",
    counterpart="alibi",
    counterpart_ratios=(1.8, 1.9, 2.0),
)


def result(*rows, **changes):
    machine = {"device": "cpu", "processor": "a processor", "cores": 2, "threads": 1, "torch": "2"}
    known = {
        "zoo_version": "0",
        "created": "now",
        "command": "zoo bench",
        "machine": machine,
        "shape": {"name": "lm_toy", **vars(SHAPES["lm_toy"])},
        "options": {"rounds": 3, "tokens": 3, "prompt": 8},
        "reference": "rope",
        "excluded": {},
        "rows": rows,
    }
    return BenchResult(**{**known, **changes})


def test_a_table_tells_medians_ratios_and_peers():
    text = format_result(result(REFERENCE, ROW, PEER))
    assert "| alibi        |      1,234 |     2.0 | 1.50 (1.25 to 1.75) | 32,000.0 |" in text
    assert "| theirs alibi | train   |     32 | 2.0 ms | 2.0 ms | 1.90 (1.85 to 1.95) |" in text
    assert "a processor, 2 cores, 1 thread;" in text


def test_the_heading_has_the_layers_that_were_measured():
    layer = result(*(replace(one, measure="layer") for one in (REFERENCE, ROW)))
    for found, depth in ((result(REFERENCE, ROW), "2 layers"), (layer, "1 layer")):
        assert f", {depth}, batch" in format_result(found)
        assert f", {depth}, batch" in json.dumps(draw_result(found).to_dict(validate=False))


def test_what_was_stopped_or_failed_says_so():
    failed = replace(ROW, values=(), ratios=(), error="out of memory")
    text = format_result(result(REFERENCE, failed, partial=True, excluded={"cope": "no"}))
    assert text.startswith("PARTIAL")
    assert "- alibi, train at 32: out of memory" in text
    assert "Left out" in text


def test_decoding_has_a_column_for_each_context():
    rows = [
        replace(REFERENCE, measure="decode"),
        *(replace(REFERENCE, measure="context", length=n) for n in (256, 4096)),
    ]
    assert "ms per token at 4,096 | 4,096 over 256 |\n" in format_result(result(*rows))
    cache = replace(REFERENCE, measure="cache", unit="bytes", length=4096, values=(3 * 2**20,))
    line = format_result(result(*rows, cache)).splitlines()[-1]
    assert line.startswith("| rope")
    assert line.endswith(" 3.00 |")


def test_the_reference_of_all_groups_is_one_row():
    (row,) = merge_references([REFERENCE, replace(REFERENCE, group=1)])
    assert len(row.values) == 6


def test_quartiles_need_two_values():
    assert compute_quartiles([1.0]) is None
    assert compute_quartiles([1.0, 2.0, 3.0]) == (1.5, 2.5)


def test_a_column_that_says_nothing_is_left_out():
    assert "peak MB" not in format_result(result(REFERENCE, ROW))
    assert "peak MB" in format_result(
        result(REFERENCE, replace(REFERENCE, measure="memory", unit="bytes"))
    )


def test_plans_are_told_below_the_numbers():
    other = replace(ROW, name="t5", backend="chunked (why)")
    assert "computed by\n\n- sdpa: alibi, rope\n- chunked (why): t5" in format_result(
        result(ROW, REFERENCE, other)
    ).replace("rope, alibi", "alibi, rope")


def test_a_grid_is_as_wide_as_its_words():
    assert (
        format_markdown(["model", "ms"], [["a", "1.0"]])
        == "| model |  ms |\n| ----- | --: |\n| a     | 1.0 |"
    )


@pytest.mark.parametrize("lengths", [(32,), (32, 64)], ids=["bars", "curves"])
def test_files_are_written_and_read_again(lengths, tmp_path, caplog):
    rows = [replace(row, length=length) for row in (REFERENCE, ROW, PEER) for length in lengths]
    rows += [
        replace(row, name=f"{row.name}{n}", counterpart=None, counterpart_ratios=())
        for row in rows
        for n in range(9)
    ]
    made = result(*rows)
    write_result(made, tmp_path)
    assert BenchResult.read(tmp_path / "bench.json").rows == made.rows
    assert json.loads((tmp_path / "bench.json").read_text())["rows"][0]["median"] == 0.002
    with Image.open(tmp_path / "bench.png") as picture:
        assert picture.height > 100  # figures of tests have a quarter of the scale
    _, heads, cells = read_table((tmp_path / "table.tex").read_text())
    assert len(heads) == 1 + 2 * len(lengths)
    numbers = [*csv.DictReader((tmp_path / "table.csv").read_text().splitlines())]
    assert [row[0] for row in cells] == [escape_latex(one["model"]) for one in numbers]
    column = f"train, {lengths[0]} tokens, ratio"
    assert [row[2][0] for row in cells] == [
        f"{float(one[column]):.2f}" if one[column] else "--" for one in numbers
    ]
    for name in ("bench.svg", "bench.pdf"):
        assert (tmp_path / name).stat().st_size > 5000
    assert not caplog.records  # no font is missing
    assert list_other_files(tmp_path) == []


def test_a_picture_of_nothing_is_drawn(tmp_path):
    write_result(result(), tmp_path)
    assert (tmp_path / "bench.png").exists()


@pytest.mark.parametrize("content", ["{}", '{"zoo": "0.1.0", "made": "2026"}'])
def test_what_holds_no_benchmark_is_neither_read_nor_replaced(tmp_path, content):
    (tmp_path / "bench.json").write_text(content)
    with pytest.raises(DataError, match=r"bench\.json: holds no benchmark"):
        BenchResult.read(tmp_path / "bench.json")
    with pytest.raises(RecipeError, match="holds no benchmark"):
        prepare_folder(str(tmp_path))


def test_a_recorded_result_is_a_section_of_the_page(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "docs" / "build"))
    page, folder = tmp_path / "speed.md", tmp_path / "speed"
    page.write_text("written\n\n## Recorded\n\nold")
    folder.mkdir()
    write_result(result(REFERENCE, ROW), folder)
    made = importlib.import_module("measured_pages").write_speed_page(page)
    assert made.startswith("written\n\n## Recorded\n\nWritten by")
    assert "### bench\n\n```sh\nzoo bench\n```\n" in made
    assert "#### Training, 32 tokens" in made
    assert "](speed/bench.png)\n" in made
    # what comes with zoo has a section too
    assert "### vit_s_layer\n" in made
