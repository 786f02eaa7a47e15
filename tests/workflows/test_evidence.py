"""Claims of papers, the guide and the README's results follow from comparisons in studies, or say that there are none."""

import importlib
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
import yaml
from comparisons import images, replace_metrics

from zoo.cli.compare import parse_words
from zoo.comparison import claims
from zoo.comparison.hypotheses import HYPOTHESES, judge_hypotheses
from zoo.comparison.plan import PLAN, ComparisonPlan
from zoo.comparison.record import CellRecord
from zoo.comparison.record_file import CELLS_FILE, check_cells, read_cells, write_cells
from zoo.comparison.request import check_request
from zoo.comparison.results import (
    Comparison,
    RecordedHypothesis,
    RecordFlaw,
    SearchedKey,
    StudiesResult,
)
from zoo.config import load

ROOT = Path(__file__).parent.parent.parent
DECLARED = ROOT / "docs" / "claims.yaml"
RECORDS = ROOT / "docs" / "records"


@pytest.fixture(scope="module")
def docs():
    """The modules of docs/ by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs" / "build"))
        names = ("evidence_data", "claims_page", "choose_page", "evidence_rows", "quoted_numbers")
        names += ("record_baselines",)
        modules = {name: importlib.import_module(name) for name in names}
        computed = modules["evidence_data"].read_comparison

        def read_made(folder):
            """Read made-up results, which no cells have, or compute those of a record."""
            results = folder / "results.json"
            return Comparison.read(results) if results.exists() else computed(folder)

        patch.setattr(modules["evidence_data"], "read_comparison", read_made)
        yield modules


PREDICTED = ("rope_mixed > none", "none > rope_mixed", "rope_mixed < none on loss")


def write_record(folder, differences, *, base=0.8, planned=5, baseline=0.1, late=False):
    """Record studies in which rope_mixed is better than none by these differences of accuracy."""
    made = images(seeds=range(planned), levels={"none": base, "rope_mixed": base})
    studies = StudiesResult(
        budget=4,
        criterion="val/accuracy",
        better="high",
        keys=(SearchedKey(key="optim.lr", searched="[0.001,0.1,log]"),),
        variants={},
    )
    variants = []
    for variant in made.variants:
        cells = []
        for study, cell in enumerate(variant.cells):
            if study >= len(differences):
                cells.append(replace(cell, state="waiting", measurements=(), minutes=None))
                continue
            gain = differences[study] if variant.name == "rope_mixed" else 0.0
            metrics = {"test/accuracy": base + 0.001 * study + gain, "test/loss": 0.5 - gain}
            found = replace_metrics(cell, {"trained": metrics, "24": metrics, "32": metrics})
            baselines = {"test/accuracy": {"commonest": baseline}}
            cells.append(replace(found, baselines=baselines))
        variants.append(replace(variant, cells=tuple(cells)))
    plain = {"depth": 2, "dim": 96, "heads": 3, "name": "vit"}
    recipe = {
        "seed": 0,
        "model": plain,
        "trainer": {"accumulate_grad_batches": 1},
        "data": {"batch_size": 64},
    }
    found = replace(
        made,
        variants=tuple(variants),
        studies=studies,
        hypotheses=tuple(
            RecordedHypothesis(text=text, written="2026-01-02 03:04 UTC", runs_ended=3 * late)
            for text in PREDICTED
        ),
        findings=(RecordFlaw(kind="edited", text="none-0.json: edited"),) if late else (),
        base=recipe,
        machine={"cores": 2, "jobs": 1, "torch": "2.13.0"},
    )
    write_results(folder / "made", found)


def write_results(folder, comparison):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PLAN).touch()
    (folder / "results.json").write_text(json.dumps(comparison.to_dict()))


SOURCES = ({"comparison": "made"},)


def declare(path, *, hypothesis="rope_mixed > none", margin=0.0, sources=SOURCES, **changes):
    """Write a file of two comparisons, one claim and one need, with changes of the claim."""
    claim = {
        "claim": "RoPE-Mixed is better than no positions",
        "paper": "heo2024rotary",
        "effect": "not quantified",
        "comparison": "made",
        "hypothesis": hypothesis,
        "margin": margin,
        **changes,
    }
    need = {"need": "images", "sources": [*sources], "speed": "vit_s"}
    command = "zoo compare vit_comrope"
    plain = {
        "comparisons": {
            "made": {"task": "made-up images", "command": command},
            "later": {"task": "larger images", "command": command},
        },
        "claims": [claim],
        "needs": [need],
    }
    path.write_text(yaml.safe_dump(plain))


@pytest.fixture
def evidence(docs, tmp_path):
    """evidence(differences, ...) -> the evidence of a claim that these studies judge."""

    def make(differences, record=None, **claim):
        if differences is not None:
            write_record(tmp_path / "records", differences, **(record or {}))
        declare(tmp_path / "claims.yaml", **claim)
        return docs["evidence_data"].read_evidence(tmp_path / "claims.yaml", tmp_path / "records")

    return make


STEADY = (0.096, 0.104, 0.1, 0.098, 0.102)
NOISY = (0.1, -0.1, 0.12, -0.08, 0.01)


@pytest.mark.parametrize(
    ("differences", "claim", "verdict", "shown"),
    [
        (None, {}, "no evidence yet", ""),
        ((), {}, "no evidence yet", ""),
        (STEADY, {}, "held", r"\+0\.100 \(\+0\.07\d to \+0\.1\d\d\)"),
        (STEADY, {"margin": 0.1}, "held", r"\+0\.100 \(.*\)"),
        (STEADY, {"margin": 0.15}, "smaller than the paper's", r"\+0\.100 \(.*\)"),
        (STEADY, {"hypothesis": "none > rope_mixed"}, "reversed", r"\u22120\.100 \(.*\)"),
        (STEADY, {"hypothesis": "rope_mixed < none on loss"}, "held", r"\+0\.100 \(.*\)"),
        (NOISY, {}, "undecided", r"\+0\.010 \(\u2212.* to \+.*\)"),
        (NOISY, {"margin": 0.02}, "not decidable here", r"\+0\.010 \(\u2212.* to \+.*\)"),
        (STEADY[:1], {}, "undecided", r"\+0\.\d+"),
        (STEADY[:2], {}, "undecided", r"\+0\.\d+, \+0\.\d+"),
    ],
)
def test_a_claim_has_the_verdict_of_its_studies(differences, claim, verdict, shown, docs, evidence):
    found = evidence(differences, **claim)
    judged = docs["claims_page"].judge(found.claims[0], found)
    assert judged.verdict == verdict
    assert re.fullmatch(shown, judged.difference)
    # fewer than three studies have values and no interval, wherever they are shown
    page = docs["claims_page"].write_claims_page(found)
    assert verdict in page
    if differences is not None and len(differences) < 3:
        assert not re.search(r"\d \([\d.]+ to", page)
        assert "no evidence yet" in docs["choose_page"].write_guide(found)
        assert "No answer yet for images." in docs["choose_page"].write_results(found)


@pytest.mark.parametrize(
    ("base", "margin", "verdict"),
    [(0.3, 0.4, "smaller than the paper's"), (0.8, 0.4, "not decidable here"), (0.8, 0.15, "held")],
)
def test_an_effect_that_has_no_room_below_the_bound_is_not_decidable(
    base, margin, verdict, docs, evidence
):
    """None has 0.802: of 0.4 only 0.198 are left, so that less was to be seen, whatever is true."""
    gains = [one + 0.1 * (verdict == "held") for one in STEADY]
    judged = docs["claims_page"].judge(*judge_first(evidence(gains, {"base": base}, margin=margin)))
    assert judged.verdict == verdict
    ceiling = "ceiling: `none` has 0.802, which leaves 0.198 of the paper's 0.4; after 5 studies"
    assert judged.reason == (ceiling if verdict == "not decidable here" else "after 5 studies")


def judge_first(found):
    return found.claims[0], found


def test_a_claim_is_corrected_for_all_hypotheses_of_its_comparison(docs, evidence):
    """A hypothesis that became no claim counts; so do those of a command that never ran."""
    page = docs["claims_page"]
    found = evidence(STEADY)
    assert page.count_family(*judge_first(found)) == len(PREDICTED) == 3
    comparisons = {
        **found.comparisons,
        "later": replace(
            found.comparisons["later"],
            command="zoo compare vit_comrope 'hypotheses=[a > b, a > c]'",
        ),
    }
    found = replace(found, comparisons=comparisons)
    planned = replace(found.claims[0], comparison="later", hypothesis="a > b")
    assert page.count_family(planned, found) == 2
    added = replace(planned, hypothesis="b > c")
    assert page.count_family(added, found) == 3


def test_every_recorded_hypothesis_has_its_verdict_on_the_page(docs):
    found = docs["evidence_data"].read_evidence()
    page = docs["claims_page"].write_claims_page(found)
    written = 0
    for name in found.comparisons:
        comparison = found.read_comparison(name)
        section = page.partition(f"### {name}\n")[2].partition("\n### ")[0]
        for one in () if comparison is None else comparison.hypotheses:
            assert re.search(rf"^\| `{re.escape(one.text)}` ", section, re.MULTILINE)
            written += 1
    assert written > 20


def test_four_studies_are_judged_by_the_first_three(docs, evidence):
    found = evidence((*STEADY[:3], -0.9))
    judged = docs["claims_page"].judge(found.claims[0], found)
    assert (judged.verdict, judged.studies, judged.reason) == ("held", 3, "after 3 studies")


def test_studies_without_a_spread_promise_no_precision(docs, evidence):
    judge = docs["claims_page"].judge
    found = evidence((0.0,) * 5, margin=0.15)
    judged = judge(found.claims[0], found)
    assert (judged.verdict, judged.difference) == ("undecided", "+0.000")
    assert judged.reason == "5 studies, which do not differ, so that their noise is unknown"


def test_a_claim_that_was_written_late_and_an_edited_record_are_named(docs, evidence):
    found = evidence(STEADY, record={"late": True})
    judged = docs["claims_page"].judge(found.claims[0], found)
    assert judged.reason == "after 5 studies, no prediction: written after a run"
    page = docs["claims_page"].write_claims_page(found)
    assert judged.reason in page
    assert "**Edited**: none-0.json: edited." in page


def test_a_curve_that_still_falls_is_named(docs, evidence, tmp_path):
    found = evidence(STEADY)
    comparison = found.read_comparison("made")
    assert claims.list_steep(comparison) == []
    none, other = comparison.variants
    cells = [replace(cell, curve=((10, 0.9), (20, 0.8))) for cell in none.cells]
    falling = replace(comparison, variants=(replace(none, cells=tuple(cells)), other))
    assert claims.list_steep(falling) == ["none"]


@pytest.mark.parametrize(
    ("steep", "text"),
    [
        ((), ""),
        ((0,), "; not trained to the end: `none`"),
        ((0, 1), "; not trained to the end: all encodings"),
    ],
)
def test_a_row_says_which_encodings_were_not_trained_to_the_end(
    steep, text, docs, evidence, tmp_path
):
    found = evidence(STEADY)
    comparison = found.read_comparison("made")
    variants = [*comparison.variants]
    for number in steep:
        cells = [replace(cell, curve=((10, 0.9), (20, 0.8))) for cell in variants[number].cells]
        variants[number] = replace(variants[number], cells=tuple(cells))
    comparison = replace(comparison, variants=tuple(variants))
    write_results(tmp_path / "steep" / "made", comparison)
    found = replace(found, records=str(tmp_path / "steep"))
    (row,) = docs["evidence_rows"].build_rows(found)
    assert row.measured.partition("; not")[0] == row.measured.removesuffix(text)
    page = docs["choose_page"]
    for written in (page.write_guide(found), page.write_results(found)):
        (line,) = [line for line in written.splitlines() if line.startswith("| images ")]
        assert f"{text} |" in re.sub(" +", " ", line)
        assert ("not trained to the end: " in written) == bool(text)


def test_a_verdict_that_the_page_of_the_comparison_contradicts_says_so(docs):
    """The rule of that page is another one; each of the verdicts names the other."""
    found = docs["evidence_data"].read_evidence()
    pages = docs["claims_page"]
    page = pages.write_claims_page(found)
    contradicted = 0
    for name in found.comparisons:
        comparison = found.read_comparison(name)
        section = page.partition(f"### {name}\n")[2].partition("\n### ")[0]
        for judgement in () if comparison is None else judge_hypotheses(comparison):
            text = judgement.hypothesis.text
            judged = pages.judge_hypothesis(text, name, found)
            (row,) = [line for line in section.splitlines() if line.startswith(f"| `{text}` ")]
            own = {"reversed": "not held"}.get(judged.verdict, judged.verdict)
            is_ruled_alike = own in (judgement.verdict, "no evidence yet", "not decidable here")
            other = f"*{judgement.verdict}* by the rule of [its page](records/{name}/results.html)"
            assert (other in row) == (not is_ruled_alike)
            contradicted += not is_ruled_alike
    assert contradicted


def test_a_cell_that_waited_counts_as_the_median_of_its_variant(docs, tmp_path):
    cells = [
        CellRecord(name=name, variant="alibi", seed=0, minutes=minutes)
        for name, minutes in zip("abc", (3.0, 60.0, 2.0), strict=True)
    ]
    folder = tmp_path / "copying"
    folder.mkdir()
    write_cells(folder, cells)
    assert docs["claims_page"].count_hours(tmp_path) == (3, pytest.approx(9 / 60))
    # a cell that states for how long a core worked counts with that
    write_cells(folder, [replace(cells[1], processor_minutes=5.0)])
    assert docs["claims_page"].count_hours(tmp_path) == (3, pytest.approx((5 + 2 * 2.5) / 60))


def test_a_model_below_the_baseline_is_no_evidence(docs, evidence):
    found = evidence(STEADY, record={"baseline": 0.99})
    judged = docs["claims_page"].judge(found.claims[0], found)
    assert judged.verdict == "no evidence yet"
    assert judged.reason == "no model beats the baseline: commonest"
    guide = docs["choose_page"].write_guide(found)
    assert "no answer: no encoding beats commonest; the best is `rope_mixed` 0.902" in guide
    results = docs["choose_page"].write_results(found)
    assert "For images, there is no answer: no encoding beats commonest" in results
    assert "| images " not in results


def test_a_baseline_of_the_condition_decides(docs, evidence, tmp_path):
    """Every model beats the baseline at the training size, and none that of 32 pixels."""
    at_32 = {"sources": [{"comparison": "made", "condition": "32"}]}
    found = evidence(STEADY, hypothesis="rope_mixed > none at 32", **at_32)
    (row,) = docs["evidence_rows"].build_rows(found)
    assert not row.problem
    assert docs["claims_page"].judge(*judge_first(found)).verdict == "held"
    assert row.baselines == ()  # none of that condition, and no other stands in

    (tmp_path / "records" / "condition_baselines.json").write_text(
        json.dumps(
            {"made": {str(seed): {"32": {"regression (resized)": 0.95}} for seed in range(5)}}
        )
    )
    docs["record_baselines"].read_file.cache_clear()
    (row,) = docs["evidence_rows"].build_rows(found)
    assert row.problem == "no answer: no encoding beats regression (resized)"
    assert [one.text for one in row.baselines] == ["0.950"]
    judged = docs["claims_page"].judge(*judge_first(found))
    assert judged.verdict == "no evidence yet"
    assert judged.reason == "no model beats the baseline at 32: regression (resized)"


def test_the_guide_names_the_best_with_its_interval_and_the_baseline(docs, evidence):
    found = evidence(STEADY)
    guide = docs["choose_page"].write_guide(found)
    (row,) = [line for line in guide.splitlines() if line.startswith("| images ")]
    row = row.rpartition(" | [set-up]")[0]
    assert re.search(r"\| `rope_mixed` 0\.902 \(0\.\d+ to 0\.\d+\) \|.*\| 5 of 5 ", row)
    assert "commonest 0.1" in row
    # none is worse, so it is not named
    assert "`none`" not in row
    assert "none: all others are excluded" in row
    assert row in docs["choose_page"].write_results(found)


def test_what_is_not_excluded_stands_with_its_difference(docs, evidence):
    (row,) = docs["evidence_rows"].build_rows(evidence(NOISY))
    assert not row.excludes_some
    assert re.fullmatch(
        r"nothing is excluded: `none` \u22120\.010 \(\u22120\.\d+ to \+0\.\d+\)",
        row.format_others(),
    )


@pytest.mark.parametrize(
    ("differences", "record", "task", "problem"),
    [
        (STEADY, {}, "made-up images", ""),
        (STEADY[:2], {}, "larger images", "no evidence yet"),
        (STEADY, {"baseline": 0.99}, "made-up images", "no answer: at the training size"),
        (None, {}, "larger images", "no evidence yet"),
    ],
)
def test_the_first_comparison_that_can_answer_a_question_does(
    differences, record, task, problem, docs, evidence
):
    found = evidence(
        differences,
        record=record,
        sources=[{"comparison": "later"}, {"comparison": "made", "condition": "32"}],
    )
    page = docs["choose_page"]
    (row,) = [line for line in page.write_guide(found).splitlines() if line.startswith("| images ")]
    assert f" {task}" in row
    assert problem in row
    results = page.write_results(found)
    assert ("| images " in results) == (not problem)
    assert "declared and not recorded yet: *larger images*" in results


def test_numbers_of_one_row_were_measured_on_the_same(docs, evidence):
    """Rows, their values and baselines carry their subject; a row that mixes two cannot be built."""
    rows = docs["evidence_rows"]
    found = docs["evidence_data"].read_evidence()
    built = rows.build_rows(found)
    assert sum(bool(row.baselines) for row in built) >= 4
    for row in built:
        assert {one.subject for one in row.list_readings()} <= {row.subject}
        if row.baselines:
            comparison = found.read_comparison(row.source.comparison)
            recorded = read_baselines_of_cells(row.source, comparison)
            decimals = len(row.baselines[0].text.partition(".")[2])
            shown = {one.name: one.text for one in row.baselines}
            assert shown == {name: f"{value:.{decimals}f}" for name, value in recorded.items()}

    made = evidence(STEADY)
    (row,) = rows.build_rows(made)
    comparison = made.read_comparison("made")
    large = comparison.find_condition("32")
    standings = rows.rank_variants(comparison, large)
    mixed = {
        "baselines": rows.read_means(comparison, large, standings),
        "best": rows.read_means(comparison, large, standings),
        "not_excluded": rows.read_differences(comparison, large, standings),
    }
    for field, readings in mixed.items():
        with pytest.raises(ValueError, match=r"was measured on .*32 pixels.* row is about .*16"):
            replace(row, **{field: readings})
    other = replace(row.subject, unit="bits per character")
    with pytest.raises(ValueError, match="bits per character"):
        replace(row, baselines=(replace(row.baselines[0], subject=other),))


def read_baselines_of_cells(source, comparison):
    """The means of {baseline: value} under the condition of a source, from recorded files."""
    scores = json.loads((RECORDS / "condition_baselines.json").read_text())[source.comparison]
    seeds = [
        cell.seed
        for variant in comparison.variants
        for cell in variant.cells
        if cell.find(comparison.trained).metrics
    ]
    if source.condition:
        found = [scores[str(seed)][source.condition] for seed in seeds]
    else:
        cells = [cell for variant in comparison.variants for cell in variant.cells]
        found = [cell.baselines[comparison.measure] for cell in cells if cell.baselines]
    return {name: fmean(one[name] for one in found) for name in found[0]}


def test_a_convention_that_mixes_conditions_is_refused(docs):
    found = docs["evidence_data"].read_evidence()
    (first, *rest) = found.conventions
    mixed = replace(first, after=first.after.replace(" at 32", " at 24"))
    with pytest.raises(ValueError, match=r"32 pixels.* before, and .*24 pixels.* after"):
        docs["choose_page"].write_guide(replace(found, conventions=(mixed, *rest)))


def test_recorded_baselines_follow_from_the_data(docs):
    """Score the smallest recorded comparison anew; others follow by the same function."""
    module = docs["record_baselines"]
    recorded = json.loads((RECORDS / "condition_baselines.json").read_text())
    assert {*recorded} == {path.parent.name for path in RECORDS.glob("*/plan.json")}
    plan = module.ComparisonPlan.read(RECORDS / "digits")
    cell = plan.cells[0]
    recipe = module.from_plain(cell.recipe, origin="digits", name=plan.recipe)
    scored = module.score_baselines(recipe, plan.measure)
    for condition, values in recorded["digits"][str(cell.seed)].items():
        assert scored[condition] == pytest.approx(values, abs=0.01)


def test_studies_that_cannot_see_an_effect_say_their_power(docs, evidence):
    page = docs["claims_page"]
    assert claims.find_power(5, 1.0, 0.1, 1) > 0.99
    assert claims.find_power(5, 0.0, 0.1, 1, 0.99) == pytest.approx(0.005, abs=1e-6)
    powers = [claims.find_power(number, 0.1, 0.1, 2) for number in (3, 5, 8, 12, 18)]
    assert powers == sorted(powers)
    found = evidence(NOISY, margin=0.02)
    judged = page.judge(found.claims[0], found)
    assert re.fullmatch(
        r"power of 5 studies \d+ %; 80 % need \d+, by the noise of .*", judged.reason
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"paper": "nobody2020"}, "there is no paper 'nobody2020' in references.bib"),
        ({"comparison": "other"}, "there is no comparison 'other'"),
        ({"hypothesis": "rope_mixed > rope"}, "made has no variant rope"),
        ({"hypothesis": "rope_mixed < none"}, "says that rope_mixed is worse"),
        ({"hypothesis": "rope_mixed > none at 99"}, "made is not measured at 99"),
        ({"margin": -0.1}, "a margin is not below 0"),
        ({"margn": 0.1}, "margn"),
        ({"effect": None}, "effect"),
        ({"sources": [{"comparison": "other"}]}, "images: there is no comparison 'other'"),
        (
            {"sources": [{"comparison": "made", "condition": "99"}]},
            "images: made is not measured at 99",
        ),
        ({"sources": [{"condition": "24"}]}, "comparison"),
        ({"sources": []}, "images: no comparison answers it; write sources: [{comparison: NAME}]"),
    ],
)
def test_a_wrong_entry_is_refused_by_name(changes, message, evidence):
    with pytest.raises(ValueError, match=re.escape(message)):
        evidence(STEADY, **changes)


def test_a_comparison_that_was_not_tuned_in_studies_is_no_evidence(docs, tmp_path):
    write_record(tmp_path / "records", STEADY)
    path = tmp_path / "records" / "made" / "results.json"
    untuned = replace(Comparison.read(path), studies=None)
    path.write_text(json.dumps(untuned.to_dict()))
    declare(tmp_path / "claims.yaml")
    with pytest.raises(ValueError, match="not tuned in studies, so no evidence"):
        docs["evidence_data"].read_evidence(tmp_path / "claims.yaml", tmp_path / "records")


def list_declared():
    return yaml.safe_load(DECLARED.read_text())["comparisons"]


@pytest.mark.parametrize("name", list_declared())
def test_a_declared_command_can_be_started(name):
    """Check recipes, encodings and hypotheses; tuned keys are checked by the command itself."""
    program, verb, recipe, *words = shlex.split(list_declared()[name]["command"])
    assert (program, verb) == ("zoo", "compare")
    given = parse_words(words)
    assert given["tune"]
    assert given.pop("studies") >= 3
    assert given.pop("budget") >= 3
    given.pop("racing", None)  # only tuned keys can race
    arguments = {key: given.pop(key) for key in ("encodings", "vary", "tune")} | {"tune": {}}
    overrides = given.pop("overrides")
    if any(edit.key == "data.path" for edit in overrides):
        # these images are no part of zoo, and without them variants cannot be checked
        load(recipe, overrides)
        return
    checked = check_request(recipe, overrides, given={**given, "seeds": 1}, **arguments)
    names = {one.name for one in checked.recipes}
    for claim in yaml.safe_load(DECLARED.read_text())["claims"]:
        if claim["comparison"] == name:
            one, _, rest = re.split(r" ([<>]) ", claim["hypothesis"])
            assert {one, rest.partition(" at ")[0]} <= names
            # written down before the first cell, so that the record has it as a prediction
            assert claim["hypothesis"] in given["hypotheses"]


def list_lasting(command):
    # how many cells run at once changes none of those that have a thread each
    return [word for word in shlex.split(command) if not word.startswith("jobs=")]


def test_a_recorded_comparison_is_the_declared_one():
    declared = list_declared()
    for path in RECORDS.glob("*/plan.json"):
        name = path.parent.name
        command = " ".join(f"{declared[name]['command']} to=docs/records/{name}".split())
        planned = json.loads(path.read_text())["command"]
        assert list_lasting(planned) == list_lasting(command)


def test_the_readme_has_at_most_eight_results():
    text = (ROOT / "README.md").read_text()
    table = text.partition("<!-- results -->")[2].partition("<!-- end of results -->")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    assert 2 < len(rows) <= 2 + 8
    head = [cell.strip() for cell in rows[0].strip("| ").split("|")]
    assert {"best encoding", "trivial baseline", "studies"} <= {*head}


@pytest.mark.parametrize(
    "name", [str(path.parent.relative_to(RECORDS)) for path in sorted(RECORDS.rglob(PLAN))]
)
def test_recorded_cells_are_those_of_their_plans(name):
    """An edited cell or plan, and one that this version cannot read, are found."""
    folder = RECORDS / name
    plan = ComparisonPlan.read(folder)
    cells = check_cells(plan, folder)
    assert {*cells} == {*read_cells(folder)}
    # what follows from the cells is computed when it is read
    assert {path.name for path in folder.iterdir() if path.is_file()} <= {
        *(PLAN, HYPOTHESES, CELLS_FILE, ".gitignore", ".gitattributes")
    }
