"""A run whose layers differ: it trains, is evaluated by an extrapolation method, and is diagnosed."""

from __future__ import annotations

import json
import re

from tiny import language

TYPES = "{local: {window: 4, encoding: {name: rope, base: 100}}, global: {encoding: [rope, fox]}}"


def test_a_run_with_two_types_of_layers_is_trained_evaluated_and_diagnosed(zoo, tmp_path):
    words = language(
        tmp_path / "text.txt",
        "model.depth=4",
        f"model.layer_types={TYPES}",
        "model.layer_pattern=[local,global]",
        "trainer.max_steps=2",
        "evaluate.lengths=[2x]",
        "evaluate.extrapolation=[ntk]",
        "diagnostics.every_n_steps=1",
    )
    code, _, error = zoo("fit", "lm_rope", *words, "--run-dir", "run")
    assert code == 0, error
    code, out, error = zoo("eval", "run", "--json")
    assert code == 0, error
    assert "32 by ntk" in out
    code, _, error = zoo("diagnose", "run", "limit=8")
    assert code == 0, error

    page = (tmp_path / "run/diagnosis.html").read_text()
    groups = re.findall(r'<tr class="group"><th [^>]*>(\w+)</th></tr>', page)
    assert groups[:2] == ["local", "global"]
    # rows of a type follow each other
    table = page[page.index('<table class="heat') :]
    rows = re.findall(r'<th scope="row">(\d)</th>', table[: table.index("</table>")])
    assert rows == ["0", "2", "1", "3"]
    (run,) = json.loads((tmp_path / "run/diagnosis.json").read_text())["runs"]
    assert run["layer_types"] == ["local", "global"] * 2
