"""False alarms of comparisons, by simulation with a fixed seed.

    python tests/benchmarks/error_rates.py [draws] [measure ...]

writes docs/records/error_rates.json: all measures, or those that are named. All variants are equal
unless stated otherwise, and an experiment counts as wrong if any variant is called worse (or
dropped). 5 % are promised.

- `seeds`: variants of given noise, 3 to 8 seeds, no tuning; by `compare_all`, and with one variance
  for all variants (Tukey). `width_ratio`: the median width of an interval, with one variance 1.
- `named`: how often all intervals of `compare_named` hold their true differences at once.
- `tuned`: variants whose optimum lies elsewhere in the same ranges. A trial's validation value falls
  with the squared distance from the optimum (`curvature` over the width of a range). `studies`: five
  studies of four settings each, through `list_settings`, `choose_best` and `compare_all`. `once`:
  the design is searched once, then the chosen setting is trained with five seeds.
- `racing`: the same, with looks after 3, 5, 8, 12 and 18 studies; and with one variant that is
  better than all others, how often it is dropped, and how many of the others are. `claim_wrongly_
  refuted`: how often a variant that is better by what is claimed is stopped as smaller than claimed.
- `kinds`: comparisons of equal variants whose seeds have the noise that tasks have, before and after
  version 0.4 (`is_guarded=False` decides as 0.3.0 did), with the share of others that a variant
  better by 4 standard deviations leaves behind. `raced_kinds`: races of five studies.
- `growth`: a comparison of 3 seeds that is made one of 10 in the same folder, judged at both looks.
- `conditions`: five conditions on one page.
- `equality`: how often two one-sided tests call a variant equal that differs by exactly the margin,
  and how often one that is equal.
- `drops`: claims about a larger size. One variant is better by 4 standard deviations at both sizes,
  so that nothing is lost: how often the claim is held by the difference there alone, and with the
  drops. `found`: how often it is held where only the others lose as much.
- `tasks`: the ranking over tasks, and a bootstrap of the interquartile mean, which it replaced.
- `tuned_tasks`: the ranking over three tasks with five studies of four settings.
"""

import json
from collections.abc import Callable, Sequence
from math import nan, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from zoo.comparison.design import ChoiceAxis, Range, choose_best, list_settings
from zoo.comparison.looks import FIVE_LOOKS, LOOKS, plan_looks
from zoo.comparison.overall import rank_scores
from zoo.comparison.racing import Claim, RacedClaim, judge_claims, race
from zoo.comparison.statistics import (
    LEVEL,
    Pair,
    compare_all,
    compare_equality,
    compare_named,
    excludes_zero,
    find_range,
    measure_noise,
    measure_table,
)

RECORD = Path(__file__).parents[2] / "docs" / "records" / "error_rates.json"
DRAWS = 1000
STUDIES, BUDGET, VARIANTS = 5, 4, 6
# of a trained model from seed to seed, of what all variants of a study share, and of validation
NOISE, SHARED, VALIDATION = 0.01, 0.02, 0.005
CURVATURES = (0.02, 0.05, 0.1, 0.2, 0.4)
BETTER_BY = (0.005, 0.03)
CLAIMED = 0.02
AXES = (
    Range("optim.lr", 1e-4, 1e-2),
    Range("optim.weight_decay", 0.0, 0.2, "linear"),
    ChoiceAxis("model.scale_embeddings", (True, False)),
)
UNEQUAL = {"equal": [1.0], "one varies 3 times as much": [3.0], "one varies 5 times as much": [5.0]}

Table = NDArray[np.float64]
"""Values [V, S] by variant and study or seed."""


SPLIT_LOW, SPLIT_HIGH, JITTER = 0.55, 0.98, 0.005
CEILING, TEST_SAMPLES = 0.997, 359
KIND_VARIANTS, KIND_SEEDS = (2, 4, 8), (3, 5, 10)


DrawKind = Callable[[np.random.Generator, int, int], Table]


def draw_normal(rng: np.random.Generator, variants: int, seeds: int) -> Table:
    """Return normal noise, with an effect of each seed that all variants share."""
    return 0.8 + NOISE * (rng.normal(size=(variants, seeds)) + rng.normal(size=seeds))


def draw_split(share: float, jitter: float = JITTER) -> DrawKind:
    """Return what draws seeds that solve a task with a probability, or stay at its baseline."""

    def draw(rng: np.random.Generator, variants: int, seeds: int) -> Table:
        is_solved = rng.random((variants, seeds)) < share
        noise = jitter * rng.normal(size=(variants, seeds))
        return np.where(is_solved, SPLIT_HIGH, SPLIT_LOW) + noise

    return draw


def draw_ceiling(rng: np.random.Generator, variants: int, seeds: int) -> Table:
    """Return shares of a test set of which nearly all samples are right."""
    return rng.binomial(TEST_SAMPLES, CEILING, (variants, seeds)) / TEST_SAMPLES


def draw_rounded(rng: np.random.Generator, variants: int, seeds: int) -> Table:
    """Return normal noise, rounded to two decimals."""
    return np.asarray(np.round(0.8 + 0.6 * NOISE * rng.normal(size=(variants, seeds)), 2))


def draw_heavy(rng: np.random.Generator, variants: int, seeds: int) -> Table:
    """Return noise of Student's t with two degrees of freedom, whose variance is infinite."""
    return 0.8 + NOISE * rng.standard_t(2, (variants, seeds))


def draw_unequal(rng: np.random.Generator, variants: int, seeds: int) -> Table:
    """Return normal noise, of the first variant four times as much."""
    deviations = np.array([4.0] + [1.0] * (variants - 1))[:, None]
    return 0.8 + NOISE * (deviations * rng.normal(size=(variants, seeds)) + rng.normal(size=seeds))


KINDS: dict[str, DrawKind] = {
    "normal": draw_normal,
    "70 % of seeds solve the task": draw_split(0.7),
    "half of the seeds solve it": draw_split(0.5),
    "95 % of seeds solve it": draw_split(0.95),
    "70 % solve it, all alike": draw_split(0.7, jitter=0.0),
    "ceiling of 359 test samples": draw_ceiling,
    "rounded to two decimals": draw_rounded,
    "heavy tails": draw_heavy,
    "one variant four times as noisy": draw_unequal,
}
CONDITIONS = 5
PAGE_VARIANTS = 4
GAP = 4 * NOISE


def list_worse(table: Table, level: float = LEVEL, *, is_guarded: bool = True) -> list[str]:
    """Return the variants that `compare_all` calls worse than the best."""
    values = name_rows(table)
    first = f"v{table.mean(1).argmax()}"
    found = compare_all(values, first, measure_noise(values), level=level, is_guarded=is_guarded)
    # equal variants that are equal in every seed share the first place
    return [name for name, one in found.items() if excludes_zero(one.estimate)]


def measure_kinds(draws: int) -> list[dict[str, Any]]:
    """Return false alarms by kind of noise, before and after, and the power."""
    rows = []
    for kind, (name, draw) in enumerate(KINDS.items()):
        for variants in KIND_VARIANTS:
            for seeds in KIND_SEEDS:
                rng = np.random.default_rng([7, kind, variants, seeds])
                tables = [draw(rng, variants, seeds) for _ in range(draws)]
                before = sum(bool(list_worse(one, is_guarded=False)) for one in tables)
                after = sum(bool(list_worse(one)) for one in tables)
                raised = np.zeros((variants, 1))
                raised[0] = GAP
                found = sum(len(list_worse(one + raised)) for one in tables[: draws // 4])
                row: dict[str, Any] = {"noise": name, "variants": variants, "seeds": seeds}
                row |= {"wrong_before": before / draws, "wrong": after / draws}
                row["others_worse"] = found / (draws // 4) / (variants - 1)
                rows.append(row)
                print(row, flush=True)
    return rows


def measure_raced_kinds(draws: int) -> list[dict[str, Any]]:
    """Return how often races of five studies drop an equal variant, before and after."""
    rows = []
    for kind, (name, draw) in enumerate(KINDS.items()):
        rng = np.random.default_rng([8, kind])
        tables = [draw(rng, VARIANTS, STUDIES) for _ in range(draws)]
        row: dict[str, Any] = {"noise": name}
        for key, levels, is_guarded in (
            ("wrong_before", FIVE_LOOKS, False),
            ("wrong", plan_looks((STUDIES,)), True),
        ):
            raced = (
                race(name_rows(one), better="high", levels=levels, is_guarded=is_guarded)
                for one in tables
            )
            wrong = sum(any(look.stopped for look in looks) for looks in raced)
            row[key] = wrong / draws
        rows.append(row)
        print(row, flush=True)
    return rows


def measure_growth(draws: int) -> list[dict[str, Any]]:
    """Return false alarms at either look of a comparison that grew from 3 seeds to 10."""
    rows = []
    for name in ("normal", "70 % of seeds solve the task"):
        rng = np.random.default_rng([9, len(name)])
        tables = [KINDS[name](rng, 4, 10) for _ in range(draws)]
        first, last = spend_growth()
        before = sum(
            bool(list_worse(one[:, :3], is_guarded=False) or list_worse(one, is_guarded=False))
            for one in tables
        )
        after = sum(bool(list_worse(one[:, :3], first) or list_worse(one, last)) for one in tables)
        promised = round(2 - first - last, 4)
        row = {"noise": name, "wrong_before": before / draws, "wrong": after / draws}
        rows.append({**row, "promised": promised})
        print(rows[-1], flush=True)
    return rows


def judge_first(table: Table) -> str:
    """Return the verdict on the claim that the first variant is better than the second."""
    (decision,) = judge_claims(name_rows(table), [Claim("v0", "v1")], better="high", family=1)
    return decision.verdict


def measure_drops(draws: int) -> list[dict[str, Any]]:
    """Return how often a claim about a larger size is held, where nothing is lost and where it is."""
    rows = []
    for kind, (name, draw) in enumerate(KINDS.items()):
        for seeds in KIND_SEEDS:
            rng = np.random.default_rng([11, kind, seeds])
            # all others are lowered, so that no share of a test set exceeds 1
            lowered = np.full((PAGE_VARIANTS, 1), GAP)
            lowered[0] = 0
            wrong = wrong_without = found = 0
            for _ in range(draws):
                trained, larger = (draw(rng, PAGE_VARIANTS, seeds) for _ in range(2))
                is_better = judge_first(larger - lowered) == "held"
                wrong_without += is_better
                wrong += is_better and judge_first(larger - trained) == "held"
                found += is_better and judge_first(larger - lowered - trained) == "held"
            row: dict[str, Any] = {"noise": name, "seeds": seeds}
            row |= {"wrong_before": wrong_without / draws, "wrong": wrong / draws}
            rows.append({**row, "found": found / draws})
            print(rows[-1], flush=True)
    return rows


def measure_equality(draws: int) -> list[dict[str, Any]]:
    """Return how often two one-sided tests call variants equal at the margin, and equal ones."""
    rows = []
    for kind, (name, draw) in enumerate(KINDS.items()):
        for seeds in KIND_SEEDS:
            rng = np.random.default_rng([12, kind, seeds])
            lowered = np.full((PAGE_VARIANTS, 1), GAP)
            lowered[0] = 0
            wrong = found = 0
            for _ in range(draws):
                table = draw(rng, PAGE_VARIANTS, seeds)
                wrong += call_equal(table - lowered)
                found += call_equal(table)
            row = {"noise": name, "seeds": seeds, "wrong": wrong / draws, "found": found / draws}
            rows.append(row)
            print(row, flush=True)
    return rows


def call_equal(table: Table) -> bool:
    """Return whether the first two variants are called equal within the gap."""
    values = name_rows(table)
    equality = compare_equality(values, Pair("v0", "v1", GAP), measure_noise(values), family=1)
    return equality is not None and equality.is_equal


def spend_growth() -> tuple[float, float]:
    """Return the levels of a first plan and of its continuation."""
    return LEVEL, 1 - (1 - LEVEL) / 2


def measure_conditions(draws: int) -> list[dict[str, Any]]:
    """Return false alarms of a page with five conditions."""
    rows = []
    for name in ("normal", "70 % of seeds solve the task"):
        rng = np.random.default_rng([10, len(name)])
        corrected = 1 - (1 - LEVEL) / CONDITIONS
        before = after = 0
        for _ in range(draws):
            tables = [KINDS[name](rng, 4, 5) for _ in range(CONDITIONS)]
            before += any(list_worse(one, is_guarded=False) for one in tables)
            after += any(list_worse(one, corrected) for one in tables)
        rows.append({"noise": name, "wrong_before": before / draws, "wrong": after / draws})
        print(rows[-1], flush=True)
    return rows


def name_rows(table: Table) -> dict[str, dict[int, float]]:
    """Return values as a comparison has them."""
    return {f"v{number}": dict(enumerate(row)) for number, row in enumerate(table.tolist())}


def find_worse(table: Table) -> bool:
    """Return whether `compare_all` calls any variant worse than the best."""
    values = name_rows(table)
    first = f"v{table.mean(1).argmax()}"
    found = compare_all(values, first, measure_noise(values))
    return any(excludes_zero(one.estimate) for one in found.values())


def find_worse_pooled(table: Table) -> bool:
    """Return the same with one variance for all variants."""
    means = table.mean(1)
    squares, _, freedom = measure_table(table)
    error = sqrt(float(squares.sum()) / freedom / table.shape[1])
    return bool(np.ptp(means) > find_range(len(table), float(freedom)) * error)


def measure_seeds(draws: int) -> list[dict[str, Any]]:
    """Return false alarms without tuning."""
    found = []
    for variants, seeds in ((3, 3), (5, 3), (10, 3), (10, 5), (10, 8), (20, 3)):
        for name, first in UNEQUAL.items():
            rng = np.random.default_rng([1, variants, seeds])
            deviations = np.array(first + [1.0] * (variants - 1))[:, None]
            own = pooled = 0
            widths = []
            for _ in range(draws):
                table = deviations * rng.normal(size=(variants, seeds))
                own += find_worse(table)
                pooled += find_worse_pooled(table)
                widths.append(_compare_widths(table))
            row = {"variants": variants, "seeds": seeds, "noise": name}
            row |= {"wrong": own / draws, "wrong_with_one_variance": pooled / draws}
            found.append(row | {"width_ratio": round(float(np.median(widths)), 2)})
            print(found[-1], flush=True)
    return found


def _compare_widths(table: Table) -> float:
    """Return how many times as wide an interval is as with one variance."""
    values = name_rows(table)
    estimate = compare_all(values, "v0", measure_noise(values))["v1"].estimate
    squares, _, freedom = measure_table(table)
    error = sqrt(float(squares.sum()) / freedom / table.shape[1])
    if estimate.high is None:
        # many variants with few seeds have no interval
        return nan
    return (estimate.high - estimate.mean) / (find_range(len(table), float(freedom)) * error)


def measure_named(draws: int) -> list[dict[str, Any]]:
    """Return how often all intervals of named comparisons hold at once."""
    found = []
    for variants, seeds in ((6, 3), (6, 5)):
        rng = np.random.default_rng([2, variants, seeds])
        pairs = [Pair("v0", f"v{number}") for number in range(1, variants)]
        held = 0
        for _ in range(draws):
            values = name_rows(rng.normal(size=(variants, seeds)))
            judged = compare_named(values, pairs, measure_noise(values)).values()
            held += not any(excludes_zero(one.estimate) for one in judged)
        found.append({"variants": variants, "seeds": seeds, "all_held": held / draws})
    return found


class Surface:
    """The response of a variant to the tuned keys, and draws of its trainings."""

    def __init__(self, rng: np.random.Generator, curvature: float) -> None:
        self.curvature = curvature
        self.rate, self.decay = rng.uniform(0.2, 0.8, 2)
        self.scaled = bool(rng.integers(2))

    def measure(self, settings: dict[str, Any]) -> float:
        """Return the mean test value at some settings; 0.9 at the optimum."""
        rate = AXES[0].locate(settings["optim.lr"])
        decay = AXES[1].locate(settings["optim.weight_decay"])
        lost = self.curvature * ((rate - self.rate) ** 2 + 0.2 * (decay - self.decay) ** 2)
        lost += 0.05 * self.curvature * (settings["model.scale_embeddings"] != self.scaled)
        return float(0.9 - lost)


def tune(
    rng: np.random.Generator, surface: Surface, settings: Sequence[Any], shared: float
) -> tuple[int, float]:
    """Train all settings of a study; return the number of the best one and its test value."""
    tested = [surface.measure(one) + shared + rng.normal(0, NOISE) for one in settings]
    best = choose_best([one + rng.normal(0, VALIDATION) for one in tested], "high")
    assert best is not None
    return best, tested[best]


def draw_studies(rng: np.random.Generator, curvature: float, studies: int) -> Table:
    """Return values of equal variants by study, each tuned anew in every study."""
    surfaces = [Surface(rng, curvature) for _ in range(VARIANTS)]
    seed, columns = int(rng.integers(2**31)), []
    for study in range(studies):
        settings, shared = list_settings(AXES, study, BUDGET, seed), rng.normal(0, SHARED)
        columns.append([tune(rng, one, settings, shared)[1] for one in surfaces])
    return np.array(columns).T


def draw_once(rng: np.random.Generator, curvature: float) -> Table:
    """Return values of equal variants by seed, tuned once before."""
    settings = list_settings(AXES, 0, BUDGET, int(rng.integers(2**31)))
    shared, rows = rng.normal(0, SHARED, STUDIES), []
    for _ in range(VARIANTS):
        surface = Surface(rng, curvature)
        best, _ = tune(rng, surface, settings, 0.0)
        rows.append(surface.measure(settings[best]) + shared + rng.normal(0, NOISE, STUDIES))
    return np.array(rows)


def measure_tuned(draws: int) -> list[dict[str, Any]]:
    """Return false alarms of tuned comparisons."""
    found = []
    for curvature in CURVATURES:
        rng = np.random.default_rng([3, round(1000 * curvature)])
        studies = [find_worse(draw_studies(rng, curvature, STUDIES)) for _ in range(draws)]
        once = [find_worse(draw_once(rng, curvature)) for _ in range(draws)]
        row: dict[str, Any] = {"curvature": curvature}
        row |= {"wrong_of_first_200": sum(studies[:200]), "wrong": sum(studies) / draws}
        found.append(row | {"wrong_if_tuned_once": sum(once) / draws})
        print(found[-1], flush=True)
    return found


def run_race(table: Table) -> tuple[dict[str, int], int]:
    """Return {dropped variant: look} and the number of trainings of studies that were done."""
    decisions = race(name_rows(table), better="high")
    dropped = {one.variant: one.look for each in decisions for one in each.stopped}
    last = decisions[-1].look
    return dropped, sum(dropped.get(f"v{number}", last) for number in range(len(table)))


def refute_wrongly(table: Table) -> bool:
    """Return whether racing stops a variant for claims although it is as good as they say."""
    better = np.array(table)
    better[0] += CLAIMED
    values = name_rows(better)
    # all variants lose as much by tuning on average, so the first is better by what is claimed
    claims = [Claim("v0", f"v{number}", CLAIMED) for number in range(1, len(table))]
    raced = [RacedClaim(one, values, "high") for one in claims]
    return any(
        one.variant == "v0"
        for each in race(values, better="high", claims=raced)
        for one in each.stopped
    )


def measure_racing(draws: int) -> list[dict[str, Any]]:
    """Return how often racing drops an equal variant, and the best one."""
    found = []
    for curvature in CURVATURES:
        rng = np.random.default_rng([4, round(1000 * curvature)])
        tables = [draw_studies(rng, curvature, LOOKS[-1]) for _ in range(draws)]
        wrong = [bool(run_race(table)[0]) for table in tables]
        row: dict[str, Any] = {"curvature": curvature}
        row |= {"wrong_of_first_200": sum(wrong[:200]), "wrong": sum(wrong) / draws}
        row["claim_wrongly_refuted"] = sum(map(refute_wrongly, tables)) / draws
        row["with_a_better_variant"] = [_race_better(tables, gap) for gap in BETTER_BY]
        found.append(row)
        print(row, flush=True)
    return found


def _race_better(tables: Sequence[Table], gap: float) -> dict[str, Any]:
    """Return how often the first variant is dropped if it is better by a gap."""
    raised = np.zeros((VARIANTS, 1))
    raised[0] = gap
    raced = [run_race(table + raised) for table in tables]
    lost = ["v0" in dropped for dropped, _ in raced]
    gone = sum(len(dropped.keys() - {"v0"}) for dropped, _ in raced)
    trained = sum(count for _, count in raced)
    return {
        "better_by": gap,
        "best_dropped_of_first_200": sum(lost[:200]),
        "best_dropped": sum(lost) / len(raced),
        "others_dropped": gone / len(raced) / (VARIANTS - 1),
        "share_of_studies_trained": trained / len(raced) / (VARIANTS * LOOKS[-1]),
    }


def normalize(scores: Table) -> Table:
    """Give the best variant the score 1 and the last the score 0."""
    means = scores.mean(1)
    normal: Table = (scores - means.min()) / np.ptp(means)
    return normal


def rank_wrongly(tasks: Sequence[Table]) -> bool:
    """Return whether the ranking over tasks calls any variant worse than the first."""
    names = [f"v{number}" for number in range(len(tasks[0]))]
    return any(not one.may_be_best for one in rank_scores(tasks, names))


def rank_wrongly_by_bootstrap(rng: np.random.Generator, tasks: Sequence[Table]) -> bool:
    """Return the same by a bootstrap of interquartile means, widened for few seeds."""
    variants, resamples = len(tasks[0]), 400
    drawn = []
    for scores in tasks:
        seeds = scores.shape[1]
        drawn.append(scores[:, rng.integers(seeds, size=(resamples, seeds))].swapaxes(0, 1))
    estimate = stats.trim_mean(np.concatenate(tasks, axis=1), 0.25, axis=1)
    again = stats.trim_mean(np.concatenate(drawn, axis=2), 0.25, axis=2)  # [resamples, V]
    gaps = again[:, :, None] - again[:, None]
    true = estimate[:, None] - estimate
    spread = gaps.std(0) + np.eye(variants)
    critical = np.quantile((np.abs(gaps - true) / spread).max((1, 2)), 0.95)
    seeds = min(one.shape[1] for one in tasks)
    freedom = sum(one.shape[1] - 1 for one in tasks)
    widening = sqrt(seeds / (seeds - 1)) * stats.t.ppf(0.975, freedom) / stats.norm.ppf(0.975)
    first = int(estimate.argmax())
    return bool((true[first] > critical * widening * spread[first]).any())


def measure_tasks(draws: int) -> list[dict[str, Any]]:
    """Return false alarms of the ranking over tasks without tuning."""
    found = []
    for variants, seeds, tasks in ((2, 3, 2), (2, 3, 7), (5, 3, 4), (10, 3, 2), (10, 3, 7)):
        for scale in (1, 10):
            rng = np.random.default_rng([5, variants, seeds, tasks])
            wrong = by_bootstrap = 0
            for _ in range(draws):
                drawn = [rng.normal(size=(variants, seeds)) for _ in range(tasks)]
                # a task without separation: its scores have more noise than those of the others
                drawn = [normalize(one) for one in drawn] if scale == 1 else drawn
                drawn[0] = scale * drawn[0]
                wrong += rank_wrongly(drawn)
                by_bootstrap += rank_wrongly_by_bootstrap(rng, drawn)
            row = {"variants": variants, "seeds": seeds, "tasks": tasks, "noise_of_one_task": scale}
            row |= {"wrong": wrong / draws, "wrong_by_bootstrap": by_bootstrap / draws}
            found.append(row)
            print(row, flush=True)
    return found


def measure_tuned_tasks(draws: int) -> list[dict[str, Any]]:
    """Return false alarms of the ranking over tuned tasks."""
    found = []
    for curvature in CURVATURES:
        rng = np.random.default_rng([6, round(1000 * curvature)])
        wrong = [
            rank_wrongly([normalize(draw_studies(rng, curvature, STUDIES)) for _ in range(3)])
            for _ in range(draws)
        ]
        row: dict[str, Any] = {"curvature": curvature, "tasks": 3}
        found.append(row | {"wrong_of_first_200": sum(wrong[:200]), "wrong": sum(wrong) / draws})
        print(found[-1], flush=True)
    return found


MEASURES = {
    "kinds": measure_kinds,
    "raced_kinds": measure_raced_kinds,
    "growth": measure_growth,
    "conditions": measure_conditions,
    "equality": measure_equality,
    "drops": measure_drops,
    "tuned": measure_tuned,
    "racing": measure_racing,
    "tuned_tasks": measure_tuned_tasks,
    "seeds": measure_seeds,
    "named": measure_named,
    "tasks": measure_tasks,
}


DOUBLED = ("kinds", "raced_kinds", "growth", "conditions", "equality", "drops")
"""Measures that have twice as many draws."""


def main(draws: int, names: Sequence[str]) -> None:
    """Measure and write the record; measures that are not named stay as they are there."""
    record = json.loads(RECORD.read_text()) if names and RECORD.exists() else {}
    record["setting"] = {
        "draws": draws,
        "draws_of_kinds": 2 * draws,
        "studies": STUDIES,
        "budget": BUDGET,
        "variants": VARIANTS,
    }
    for name in names or MEASURES:
        record[name] = MEASURES[name](2 * draws if name in DOUBLED else draws)
        RECORD.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    from arguments import make_parser, positive

    parser = make_parser(__doc__)
    parser.add_argument("draws", nargs="?", type=positive, default=DRAWS)
    parser.add_argument("measures", nargs="*", metavar="measure", choices=[[], *MEASURES])
    words = parser.parse_args()
    main(words.draws, words.measures)
