"""Read further than a model was trained: every rule of RoPE, without training and after a little.

    python examples/extend.py runs/extend

trains two small models, of a manual (loss) and of passkeys (retrieval), and tests each at up to 8
times its trained length: unchanged, by each rule, without positions (`drop`), and by the baseline
that never reads more than the trained length (`truncate`). Then the better rules are trained a
little at the long length, DroPE at the trained length, and all are tested again. The folder gets
the runs, `extension.json` and `extension.png`; what is in it already is not measured again.
`python examples/extend.py runs/extend small` takes seconds, to try the program.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch.nn import functional as F

import zoo
from zoo.reporting import charts
from zoo.reporting.panel import Line, LineChart, Scale
from zoo.reporting.style import Style
from zoo.reporting.tables import format_table
from zoo.run.build import build_data

TIMES = (2, 4, 8)
METHODS = ("none", "linear", "ntk", "yarn", "dynamic", "proportional", "drop", "truncate")
RULES = (*METHODS[:4], "longrope", *METHODS[4:])
TRAINED_ON = ("none", "linear", "ntk", "yarn", "longrope")
BENDS = (0.5, 1.0, 2.0, 4.0)
"""Exponents a of the divisors s^((t / (T - 1))^a) that longrope chooses from; 1 is close to ntk."""
TASKS = {"lm_rope": "test/loss", "passkey_rope": "test/accuracy"}
TUNING: dict[str, dict[str, Any]] = {
    "lm_rope": {"trainer.max_epochs": 1, "optim.lr": 1e-3},
    "passkey_rope": {"trainer.max_epochs": 1, "optim.lr": 1e-3, "data.train": 4000},
}
"""Training after the change. It reads as many tokens whatever the length."""
SMALL: dict[str, dict[str, Any]] = {
    "lm_rope": {"model.dim": 32, "model.depth": 1, "data.test": 0.02, "data.val": 0.02},
    "passkey_rope": {"model.dim": 32, "model.depth": 1, "data.test": 20, "data.val": 20},
}
TITLES = {"before": "as trained", "after": "trained a little more"}
STYLE = Style(width=330, height=230)


class Study:
    """The measurements of one recipe, kept in a file as they come."""

    def __init__(self, recipe: str, folder: Path, small: bool) -> None:
        self.recipe, self.metric, self.folder = recipe, TASKS[recipe], folder
        self.file = folder / f"{recipe}.json"
        self.few = {**SMALL[recipe], "trainer.max_steps": 2} if small else {}
        self.found: dict[str, Any] = {"seconds": 0.0}
        if self.file.exists():
            self.found = json.loads(self.file.read_text(encoding="utf-8"))
        self.run = folder / "runs" / recipe
        own = {"trainer.num_threads": 1, **self.few}
        self._keep("trained", lambda: zoo.fit(recipe, own, run_dir=self.run).metrics[self.metric])
        self.length: int = self._keep("length", lambda: int(zoo.load(self.run).spec.length))

    def _keep(self, name: str, measure: Callable[[], Any]) -> Any:
        """Return a measurement from the file, or measure it and write the file."""
        if name not in self.found:
            start = time.process_time()
            self.found[name] = measure()
            self.found["seconds"] += time.process_time() - start
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.file.write_text(json.dumps(self.found, indent=1) + "\n", encoding="utf-8")
            print(self.recipe, name, flush=True)
        return self.found[name]

    def measure_untrained(self) -> None:
        """Test the trained model at each length by each rule."""
        for times in TIMES:
            for method in METHODS:
                self._keep(
                    f"before {method} {times}",
                    lambda times=times, method=method: self._test(
                        self.run, {}, times, [method] if method != "none" else []
                    ),
                )
            bend = self._keep(f"bend {times}", lambda times=times: self._choose_bend(times))
            self._keep(
                f"before longrope {times}",
                lambda times=times, bend=bend: self._test(
                    self.run, self._scale("longrope", times, bend), times
                ),
            )
        self._keep("before none 1", lambda: self._test(self.run, {}, 1))

    def measure_trained(self) -> None:
        """Train with each rule at the longest length, and without positions at the trained one."""
        most = TIMES[-1]
        for rule in TRAINED_ON:
            scaled = {} if rule == "none" else self._scale(rule, most, self.found[f"bend {most}"])
            changes = {**scaled, **self._resize(most)}
            self._train_and_test(rule, changes)
        self._train_and_test("drop", {"model.encoding": "none"})

    def _train_and_test(self, rule: str, changes: Mapping[str, Any]) -> None:
        run = self.folder / "runs" / f"{self.recipe}-{rule}"
        settings = {
            "init_from": str(self.run),
            "trainer.num_threads": 1,
            **TUNING[self.recipe],
            **self.few,
            **changes,
        }
        self._keep(
            f"training {rule}",
            lambda: zoo.fit(self.recipe, settings, run_dir=run).metrics[self.metric],
        )
        for times in (1, *TIMES):
            self._keep(f"after {rule} {times}", lambda times=times: self._test(run, {}, times))

    def _resize(self, times: int) -> dict[str, Any]:
        rows = int(zoo.load_recipe(self.recipe).data.options["batch_size"])
        return {"data.length": self.length * times, "data.batch_size": max(1, rows // times)}

    def _scale(self, rule: str, times: int, bend: float) -> dict[str, Any]:
        """Return the change of a recipe that scales the frequencies of RoPE by a rule."""
        scaling: dict[str, Any] = {"rule": rule, "factor": times, "original": self.length}
        if rule == "longrope":
            pairs = self._keep("pairs", self._count_pairs)
            places = [t / max(pairs - 1, 1) for t in range(pairs)]
            scaling["length"] = self.length * times
            scaling["short_factor"] = [1.0] * pairs
            scaling["long_factor"] = [times ** (place**bend) for place in places]
        return {"model.encoding": {"name": "rope", "scaling": scaling}}

    def _count_pairs(self) -> int:
        return int(zoo.load(self.run).model.blocks[0].attn.dims.head_dim) // 2

    def _choose_bend(self, times: int) -> float:
        """Return the exponent with the lowest loss on validation data."""
        losses = {bend: self._validate(bend, times) for bend in BENDS}
        return min(BENDS, key=losses.__getitem__)

    @torch.no_grad()
    def _validate(self, bend: float, times: int) -> float:
        """Return the mean loss of longrope on validation data, in nats per target."""
        task = zoo.load(self.run, self._scale("longrope", times, bend))
        sizes = {key.removeprefix("data."): one for key, one in self._resize(times).items()}
        data = build_data(zoo.Run(self.run).recipe, **sizes)
        data.setup("fit")
        losses, count = 0.0, 0
        for batch in data.val_dataloader():
            logits = task.model(batch.inputs)
            losses += float(F.cross_entropy(logits.mT, batch.targets, reduction="sum"))
            count += int((batch.targets >= 0).sum())
        return losses / count

    def _test(
        self, run: Path, changes: Mapping[str, Any], times: int, methods: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Return the metric at so many times the trained length, and the loss by position."""
        size = self.length * times
        tested = {"evaluate.lengths": [size], "evaluate.extrapolation": [*methods] or None}
        found = zoo.evaluate(run, {**changes, **tested, "trainer.num_threads": 1}, verbose=False)
        last = found.conditions[-1]
        losses = [value for value in last.position_losses if value is not None]
        bins = max(1, self.length // 4)
        by_position = [fmean(losses[at : at + bins]) for at in range(0, len(losses), bins)]
        return {"value": last.metrics[self.metric], "refused": last.refused} | (
            {"positions": by_position} if self.metric == "test/loss" else {}
        )

    def read(self, stage: str, rule: str, times: int) -> float | None:
        """Return what was measured, or None where a rule was not tried."""
        # within the trained length, no rule changes the model
        own = "before none 1" if stage == "before" and times == 1 else f"{stage} {rule} {times}"
        return None if own not in self.found else float(self.found[own]["value"])


def tabulate(studies: Sequence[Study]) -> list[list[str]]:
    """Return the rows of the table: what was measured by each rule, before and after training."""
    sizes = [times for study in studies for times in (1, *TIMES)]
    names = [f"{study.length * times:,}" for study in studies for times in (1, *TIMES)]
    owners = [study for study in studies for _ in (1, *TIMES)]
    rows = [["", *names]]
    for stage in ("before", "after"):
        for rule in RULES:
            values = [
                study.read(stage, rule, times) for study, times in zip(owners, sizes, strict=True)
            ]
            if any(value is not None for value in values):
                label = rule if stage == "before" else f"{rule}, trained"
                cells = ["" if value is None else f"{value:.4f}" for value in values]
                rows.append([label, *cells])
    return rows


def draw(studies: Sequence[Study], path: Path) -> None:
    """Draw what was measured by length, before and after training, as a PNG file."""
    panels = [
        LineChart(
            title=f"{study.recipe}, {TITLES[stage]}",
            x="length in tokens",
            y=study.metric.replace("/", " "),
            lines=tuple(_draw_lines(study, stage)),
            x_scale=Scale(study.length, study.length * TIMES[-1], log=True).widen(),
            rule=(study.length, f"trained at {study.length}"),
        )
        for study in studies
        for stage in ("before", "after")
    ]
    charts.save_figure(charts.draw_panels(panels, STYLE), path)


def _draw_lines(study: Study, stage: str) -> Iterator[Line]:
    for rule in RULES:
        found = {times: study.read(stage, rule, times) for times in (1, *TIMES)}
        points = {study.length * at: one for at, one in found.items() if one is not None}
        if len(points) > 1:
            values = torch.tensor([*points.values()], dtype=torch.float64)
            yield Line(rule, torch.tensor([*points]), values)


def main(words: Sequence[str]) -> None:
    """Measure what is missing, print the table, write both files."""
    folder = Path(words[0])
    studies = [Study(recipe, folder, "small" in words[1:]) for recipe in TASKS]
    for study in studies:
        study.measure_untrained()
        study.measure_trained()
    rows = tabulate(studies)
    print(format_table([tuple(row) for row in rows]))
    found = {study.recipe: {"length": study.length, **study.found} for study in studies}
    content = {"zoo_version": zoo.__version__, "torch": torch.__version__, "studies": found}
    (folder / "extension.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    draw(studies, folder / "extension.png")


if __name__ == "__main__":
    main(sys.argv[1:])
