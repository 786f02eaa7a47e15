"""Claims of papers, the guide and the README's results follow from comparisons in studies, or say that there are none."""

import argparse
import importlib
import json
import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
import yaml
from comparisons import images, replace_metrics

from zoo.cli.compare import parse_words, read
from zoo.comparison.claims import find_power
from zoo.comparison.condition_baselines import read_scores
from zoo.comparison.hypotheses import HYPOTHESES
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


def declare(
    path, *, hypothesis="rope_mixed > none", margin=0.0, sources=SOURCES, rows=True, **changes
):
    """Write a file of two comparisons, one claim and one need, with changes of the claim."""
    claim = {
        "claim": "RoPE-Mixed is better than no positions",
        "paper": "heo2024rotary",
        "effect": "not quantified",
        "comparison": "made",
        "hypothesis": hypothesis,
        "margin": margin,
        "no_margin": "" if margin else "not quantified",
        **changes,
    }
    others = [
        {
            "claim": text,
            "effect": "none",
            "no_margin": "ours",
            "comparison": "made",
            "hypothesis": text,
        }
        for text in PREDICTED
        if text != hypothesis and rows
    ]
    need = {"need": "images", "sources": [*sources], "speed": "vit_s"}
    command = "zoo compare vit_comrope"
    plain = {
        "comparisons": {
            "made": {"task": "made-up images", "command": command},
            "later": {"task": "larger images", "command": command},
        },
        "claims": [claim, *others],
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
        (STEADY, {"margin": 0.15}, "smaller than claimed", r"\+0\.100 \(.*\)"),
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
    [
        (0.3, 0.4, "smaller than claimed"),
        (0.8, 0.4, "our task cannot ask this"),
        (0.8, 0.15, "held"),
    ],
)
def test_an_effect_that_has_no_room_below_the_bound_cannot_be_asked(
    base, margin, verdict, docs, evidence
):
    """None has 0.802, so that less than 0.4 was to be seen, whatever is true."""
    gains = [one + 0.1 * (verdict == "held") for one in STEADY]
    judged = docs["claims_page"].judge(*judge_first(evidence(gains, {"base": base}, margin=margin)))
    assert judged.verdict == verdict
    if verdict == "our task cannot ask this":
        assert (
            judged.reason
            == "`none` has 0.802, which leaves 0.200 of the claimed 0.4; after 5 studies"
        )
    else:
        assert judged.reason == "after 5 studies"


def judge_first(found):
    return found.claims[0], found


def test_a_claim_is_corrected_for_all_hypotheses_of_its_comparison(docs, evidence):
    """A hypothesis that has no row counts too; a row that was written later counts for itself only."""
    page = docs["claims_page"]
    found = evidence(STEADY)
    claim, comparison = found.claims[0], found.read_comparison("made")
    assert page.count_rows(claim, comparison, found) == len(PREDICTED) == 3
    late = replace(claim, hypothesis="rope_mixed > none at 32")
    grown = replace(found, claims=(*found.claims, late))
    assert page.count_rows(claim, comparison, grown) == 3
    assert page.count_rows(late, comparison, grown) == 4
    judged = page.judge(late, grown)
    assert judged.reason.endswith("written after the result")
    assert "written after the result (plan" in page.write_claims_page(grown)


def has_whole_study(folder):
    """Whether the first study, or the first seed, of a record has all of its cells."""
    if not (folder / CELLS_FILE).exists():
        return False
    plan, cells = ComparisonPlan.read(folder), read_cells(folder)
    first = plan.cells[0].block
    return all(cell.name in cells for cell in plan.cells if cell.block == first)


def test_every_recorded_hypothesis_has_its_verdict_on_the_page(docs):
    found = docs["evidence_data"].read_evidence()
    page = docs["claims_page"].write_claims_page(found)
    written = 0
    for name in found.comparisons:
        comparison = found.read_comparison(name)
        section = page.partition(f"### {name}\n")[2].partition("\n### ")[0]
        # of a comparison without a whole study, the page has the command and what was seen
        judged = comparison and has_whole_study(RECORDS / name)
        for one in comparison.hypotheses if judged else ():
            assert re.search(rf"^\| {re.escape(one.text)} ", section, re.MULTILINE)
            link = f"(`{one.text}`)"
            rows = [line for line in page.splitlines() if link in line and f"(#{name})" in line]
            assert len(rows) == 1
            assert f"{one.written}, plan `" in rows[0]
            written += 1
    assert written == 27


def test_a_hypothesis_without_a_row_is_refused_unless_the_file_has_a_reason(
    docs, evidence, tmp_path
):
    with pytest.raises(
        ValueError, match="made: 'none > rope_mixed' has no row; add it, or list it"
    ):
        evidence(STEADY, rows=False)
    path = tmp_path / "claims.yaml"
    plain = yaml.safe_load(path.read_text())
    removed = [
        {"comparison": "made", "hypothesis": text, "reason": "asked twice"}
        for text in PREDICTED[1:]
    ]
    path.write_text(yaml.safe_dump({**plain, "removed": removed}))
    read = docs["evidence_data"].read_evidence
    assert read(path, tmp_path / "records").removed[0].reason == "asked twice"
    path.write_text(
        yaml.safe_dump({**plain, "removed": [{**removed[0], "reason": " "}, removed[1]]})
    )
    with pytest.raises(ValueError, match="was removed without a reason"):
        read(path, tmp_path / "records")


def test_the_commits_of_plans_and_first_cells_are_those_of_the_history(docs):
    """Each plan has its hypotheses and no cell; the first cell came with a later commit."""
    if run_git("rev-parse", "--is-shallow-repository", check=False) != "false":
        pytest.skip("the history of the repository is not here")
    found = docs["evidence_data"].read_evidence()
    for name, declared in found.comparisons.items():
        comparison = found.read_comparison(name)
        if comparison is None:
            assert not declared.plan
            continue
        is_begun = (RECORDS / name / CELLS_FILE).exists()
        assert bool(declared.first_cell) == is_begun
        folder = f"docs/records/{name}"
        texts = json.loads(run_git("show", f"{declared.plan}:{folder}/hypotheses.json"))
        assert [one["text"] for one in texts["hypotheses"]] == [
            one.text for one in comparison.hypotheses
        ]
        seen = {one["written"] for one in texts["hypotheses"]}
        assert seen == {one.written for one in comparison.hypotheses}
        assert list_cells(declared.plan, folder) == []
        if not is_begun:
            continue
        assert list_cells(declared.first_cell, folder)
        assert list_cells(f"{declared.first_cell}~1", folder) == []
        run_git("merge-base", "--is-ancestor", declared.plan, declared.first_cell)


def run_git(*words, check=True):
    found = subprocess.run(("git", "-C", ROOT, *words), check=check, capture_output=True, text=True)
    return found.stdout.strip()


def list_cells(commit, folder):
    """Files of cells at a commit: one for each at first, later one for all."""
    names = run_git("ls-tree", "-r", "--name-only", commit, folder).splitlines()
    return [name for name in names if "/cells" in name]


def test_verdicts_that_changed_are_those_of_the_earlier_page(docs):
    found = docs["evidence_data"].read_evidence()
    page = docs["claims_page"].write_claims_page(found)
    table = page.partition("## Verdicts that changed")[2].partition("## Comparisons")[0]
    assert "`rope_axial > learned at 64`" in table
    assert "`path > rope at sparse`" not in table
    if run_git("rev-parse", "--is-shallow-repository", check=False) != "false":
        pytest.skip("the history of the repository is not here")
    before = run_git("show", f"{found.earlier.commit}:docs/claims.md")
    for name, verdicts in found.earlier.verdicts.items():
        section = before.partition(f"### {name}\n")[2].partition("\n### ")[0]
        head = before.partition("## Comparisons")[0]
        for text, verdict in verdicts.items():
            rows = [
                line
                for line in (*head.splitlines(), *section.splitlines())
                if f"`{text}`" in line and (line in section or f"(#{name})" in line)
            ]
            assert f"| {verdict} " in rows[0]


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
    assert judged.reason == (
        "after 5 studies, written after the result: after 3 runs had ended, so no prediction"
    )
    page = docs["claims_page"].write_claims_page(found)
    assert judged.reason in page
    assert "**Edited**: none-0.json: edited." in page


@pytest.mark.parametrize(
    ("steep", "text"),
    [
        ((), ""),
        ((0,), "no answer: `none` was not trained to the end"),
        ((0, 1), "no answer: no variant was trained to the end"),
    ],
)
def test_a_comparison_that_was_not_trained_to_the_end_answers_nothing(
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
    assert row.problem == text
    guide = docs["choose_page"].write_guide(found)
    (line,) = [line for line in guide.splitlines() if line.startswith("| images ")]
    assert f"{text}; the best is `rope_mixed`" in line or not text
    judged = docs["claims_page"].judge(found.claims[0], found)
    assert judged.verdict == ("not trained to the end" if steep else "held")


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
    assert docs["claims_page"].judge(*judge_first(found)).verdict != "no evidence yet"
    assert row.baselines == ()  # none of that condition, and no other stands in

    (tmp_path / "records" / "condition_baselines.json").write_text(
        json.dumps(
            {"made": {str(seed): {"32": {"regression (resized)": 0.95}} for seed in range(5)}}
        )
    )
    read_scores.cache_clear()
    (row,) = docs["evidence_rows"].build_rows(found)
    assert row.problem == "no answer: no encoding beats regression (resized)"
    assert [one.text for one in row.baselines] == ["0.950"]
    judged = docs["claims_page"].judge(*judge_first(found))
    assert judged.verdict == "no evidence yet"
    assert judged.reason.startswith("no model beats the baseline at 32: regression (resized)")


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
    begun = [path.parent for path in RECORDS.glob(f"*/{CELLS_FILE}")]
    assert {*recorded} == {folder.name for folder in begun if has_whole_study(folder)}
    plan = module.ComparisonPlan.read(RECORDS / "digits")
    cell = plan.cells[0]
    recipe = module.from_plain(cell.recipe, origin="digits", name=plan.recipe)
    scored = module.score_baselines(recipe, plan.measure)
    for condition, values in recorded["digits"][str(cell.seed)].items():
        assert scored[condition] == pytest.approx(values, abs=0.01)


def test_studies_that_cannot_see_an_effect_say_their_power(docs, evidence):
    page = docs["claims_page"]
    assert find_power(5, 1.0, 0.1, 1) > 0.99
    assert find_power(5, 0.0, 0.1, 1, 0.99) == pytest.approx(0.005, abs=1e-6)
    powers = [find_power(number, 0.1, 0.1, 2) for number in (3, 5, 8, 12, 18)]
    assert powers == sorted(powers)
    found = evidence(NOISY, margin=0.02)
    judged = page.judge(found.claims[0], found)
    assert re.fullmatch(r"power of 5 studies \d+ %; 80 % need \d+, by their noise", judged.reason)


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


@pytest.mark.parametrize(
    "name",
    [
        # what has a record was started already
        pytest.param(name, marks=pytest.mark.nightly if (RECORDS / name / PLAN).exists() else ())
        for name in list_declared()
    ],
)
def test_a_declared_command_can_be_started(name):
    """Check recipes, encodings and hypotheses; tuned keys are checked by the command itself."""
    program, verb, recipe, *words = shlex.split(list_declared()[name]["command"])
    assert (program, verb) == ("zoo", "compare")
    # the command line reads the words before anything is imported
    read(argparse.Namespace(recipe=recipe, overrides=words))
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
            # what is not recorded yet is written down before the first cell
            is_recorded = (RECORDS / name / PLAN).exists()
            assert is_recorded or claim["hypothesis"] in given["hypotheses"]


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
