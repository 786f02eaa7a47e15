"""Read further than a model was trained: every rule of RoPE, without training and after a little.

    python examples/extend.py runs/extend

trains two small models, of a manual (loss) and of passkeys (retrieval), and tests each at up to 8
times its trained length: unchanged, by each rule, without positions (`drop`), and by the baseline
that never reads more than the trained length (`truncate`). Then the better rules are trained a
little at the long length, DroPE at the trained length, and all are tested again. The model of the
manual with the lowest loss at the long length is exported for transformers. The folder gets the
runs, the export, `extension.json` and `extension.svg`; what is in it already is not measured again.
`python examples/extend.py runs/extend small` takes seconds, to try the program.

    python examples/extend.py runs/extend SmolLM2-135M-Instruct.Q4_1.gguf

tests published weights (a folder or a GGUF file) in place of training: the loss by position in one
text of twice the trained length, and whether pass keys in it are found, without training. It
writes `published.json`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import zoo
from zoo.config import Recipe
from zoo.data.spec import Vocabulary
from zoo.reporting import charts
from zoo.reporting.panel import Line, LineChart, Scale
from zoo.reporting.style import Style
from zoo.reporting.tables import format_table
from zoo.run.build import build_data
from zoo.run.conditions import build_extended_task

TIMES = (2, 4, 8)
METHODS = ("none", "linear", "ntk", "yarn", "dynamic", "proportional", "drop", "truncate")
RULES = (*METHODS[:4], "longrope", *METHODS[4:])
TRAINED_ON = ("none", "linear", "ntk", "yarn", "longrope")
EXPORTED = ("linear", "yarn", "longrope")
"""Rules that the configuration of a Llama has words for, among those that are trained."""
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
PUBLISHED = ("none", "truncate", "yarn", "ntk", "linear", "drop", "proportional", "dynamic")
"""Methods for published weights. longrope would need the choice of its divisors first."""
SENTENCE, DIGITS = "The pass key of ", 5
KEYS = (("Anna", "48213"), ("Boris", "70956"), ("Clara", "31874"), ("David", "95062"))
TITLES = {"before": "as trained", "after": "trained a little more"}
STYLE = Style(width=330, height=230)


class Record:
    """Measurements, kept in a file as they come."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.found: dict[str, Any] = {"seconds": 0.0}
        if file.exists():
            self.found = json.loads(file.read_text(encoding="utf-8"))

    def keep(self, name: str, measure: Callable[[], Any]) -> Any:
        """Return a measurement from the file, or measure it and write the file."""
        if name not in self.found:
            start = time.process_time()
            self.found[name] = measure()
            self.found["seconds"] += time.process_time() - start
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.file.write_text(json.dumps(self.found, indent=1) + "\n", encoding="utf-8")
            print(self.file.stem, name, flush=True)
        return self.found[name]


class Study(Record):
    """The measurements of one recipe."""

    def __init__(self, recipe: str, folder: Path, small: bool) -> None:
        super().__init__(folder / f"{recipe}.json")
        self.recipe, self.metric, self.folder = recipe, TASKS[recipe], folder
        self.few = {**SMALL[recipe], "trainer.max_steps": 2} if small else {}
        self.run = folder / "runs" / recipe
        own = {"trainer.num_threads": 1, **self.few}
        self.keep("trained", lambda: zoo.fit(recipe, own, run_dir=self.run).metrics[self.metric])
        self.length: int = self.keep("length", lambda: int(zoo.load(self.run).spec.length))

    def measure_untrained(self) -> None:
        """Test the trained model at each length by each rule."""
        for times in TIMES:
            for method in METHODS:
                self.keep(
                    f"before {method} {times}",
                    lambda times=times, method=method: self._test(
                        self.run, {}, times, [method] if method != "none" else []
                    ),
                )
            bend = self.keep(f"bend {times}", lambda times=times: self._choose_bend(times))
            self.keep(
                f"before longrope {times}",
                lambda times=times, bend=bend: self._test(
                    self.run, self._scale("longrope", times, bend), times
                ),
            )
        self.keep("before none 1", lambda: self._test(self.run, {}, 1))

    def measure_trained(self) -> None:
        """Train with each rule at the longest length, and without positions at the trained one."""
        most = TIMES[-1]
        for rule in TRAINED_ON:
            scaled = {} if rule == "none" else self._scale(rule, most, self.found[f"bend {most}"])
            changes = {**scaled, **self._resize(most)}
            self._train_and_test(rule, changes)
        self._train_and_test("drop", {"model.encoding": "none"})

    def export(self) -> None:
        """Export the trained model with the lowest loss at the longest length as a Llama."""
        reached = {rule: self.found[f"after {rule} {TIMES[-1]}"]["value"] for rule in EXPORTED}
        best = min(reached, key=reached.__getitem__)
        run, folder = self.folder / "runs" / f"{self.recipe}-{best}", self.folder / "exported"
        self.keep(
            "exported",
            lambda: {"rule": best, "files": zoo.export(run, folder, "llama", verbose=False).files},
        )

    def _train_and_test(self, rule: str, changes: Mapping[str, Any]) -> None:
        run = self.folder / "runs" / f"{self.recipe}-{rule}"
        settings = {
            "init_from": str(self.run),
            "trainer.num_threads": 1,
            **TUNING[self.recipe],
            **self.few,
            **changes,
        }
        self.keep(
            f"training {rule}",
            lambda: zoo.fit(self.recipe, settings, run_dir=run).metrics[self.metric],
        )
        for times in (1, *TIMES):
            self.keep(f"after {rule} {times}", lambda times=times: self._test(run, {}, times))

    def _resize(self, times: int) -> dict[str, Any]:
        rows = int(zoo.load_recipe(self.recipe).data.options["batch_size"])
        return {"data.length": self.length * times, "data.batch_size": max(1, rows // times)}

    def _scale(self, rule: str, times: int, bend: float) -> dict[str, Any]:
        """Return the change of a recipe that scales the frequencies of RoPE by a rule."""
        scaling: dict[str, Any] = {"rule": rule, "factor": times, "original": self.length}
        if rule == "longrope":
            pairs = self.keep("pairs", self._count_pairs)
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


Found = Mapping[str, Any]
"""The measurements of a recipe."""


def read_value(found: Found, stage: str, rule: str, times: int) -> float | None:
    """Return what was measured, or None where a rule was not tried."""
    # within the trained length, no rule changes the model
    own = "before none 1" if stage == "before" and times == 1 else f"{stage} {rule} {times}"
    return None if own not in found else float(found[own]["value"])


def tabulate(found: Found) -> list[list[str]]:
    """Return the rows of a table: what was measured by each rule, before and after training."""
    sizes = (1, *TIMES)
    rows = [["", *(f"{found['length'] * times:,}" for times in sizes)]]
    for stage in ("before", "after"):
        for rule in RULES:
            values = [read_value(found, stage, rule, times) for times in sizes]
            if any(value is not None for value in values):
                label = rule if stage == "before" else f"{rule}, trained"
                rows.append([label, *("" if one is None else f"{one:.4f}" for one in values)])
    return rows


def draw(studies: Mapping[str, Found], path: Path) -> None:
    """Draw what was measured by length, before and after training."""
    panels = [
        LineChart(
            title=f"{recipe}, {TITLES[stage]}",
            x="length in tokens",
            y=TASKS[recipe].replace("/", " "),
            lines=tuple(_draw_lines(found, stage)),
            x_scale=Scale(found["length"], found["length"] * TIMES[-1], log=True).widen(),
            rule=(found["length"], f"trained at {found['length']}"),
        )
        for recipe, found in studies.items()
        for stage in ("before", "after")
        if any(name.startswith(stage) for name in found)
    ]
    charts.save_figure(charts.draw_panels(panels, STYLE), path)


def _draw_lines(found: Found, stage: str) -> Iterator[Line]:
    length = found["length"]
    for rule in RULES:
        values = {times: read_value(found, stage, rule, times) for times in (1, *TIMES)}
        points = {length * at: one for at, one in values.items() if one is not None}
        if len(points) > 1:
            heights = torch.tensor([*points.values()], dtype=torch.float64)
            yield Line(rule, torch.tensor([*points]), heights)


def write(studies: Sequence[Study], folder: Path) -> None:
    """Write all measurements so far as JSON, and their figure."""
    found = {study.recipe: study.found for study in studies}
    content = {"zoo_version": zoo.__version__, "torch": torch.__version__, "studies": found}
    text = json.dumps(content, indent=1) + "\n"
    (folder / "extension.json").write_text(text, encoding="utf-8")
    draw(found, folder / "extension.svg")


class Published(Record):
    """The measurements of published weights: no training, one text for each length and method."""

    def __init__(self, weights: Path, folder: Path, small: bool) -> None:
        super().__init__(folder / "published.json")
        self.run = folder / "runs" / "published"
        if not self.run.exists():
            zoo.convert(weights, to=self.run)
        self.keep("weights", lambda: weights.name)
        self.length: int = self.keep("length", lambda: int(zoo.load(self.run).spec.length))
        self.tokens = 512 if small else self.length

    def measure(self) -> None:
        """Read a text of the trained length, then one of twice the length by each method."""
        self.keep("none 1", lambda: self._read_text("none", 1))
        for method in PUBLISHED:
            self.keep(f"{method} 2", lambda method=method: self._read_text(method, 2))

    @torch.no_grad()
    def _read_text(self, method: str, times: int) -> dict[str, Any]:
        """Return the loss by position in nats, and how many digits of each key are predicted."""
        task, recipe = zoo.load(self.run), zoo.Run(self.run).recipe
        text, answers = self._write_text(recipe, task.spec.vocabulary, times * self.tokens)
        if method != "none":
            weights = task.state_dict()
            task = build_extended_task(recipe, task, weights, method, (float(times),))

        # logits of all tokens at once would take gigabytes: the model returns states
        model = task.model.model if method == "truncate" else task.model
        predict = model.logits
        setattr(model, "logits", lambda states: states)  # noqa: B010
        start = time.process_time()
        states = task.model(text[None])[0, :-1]  # [N - 1, D]
        losses, hits = [], []
        for part, targets in zip(states.split(1024), text[1:].split(1024), strict=True):
            logits = predict(part)
            losses.append(F.cross_entropy(logits, targets, reduction="none"))
            hits.append(logits.argmax(-1) == targets)
        seconds = time.process_time() - start

        # the loss is that of the text before the questions
        by_position, found = torch.cat(losses)[: answers[0].start], torch.cat(hits)
        parts = by_position.split(max(1, self.tokens // 8))
        return {
            "positions": [float(part.mean()) for part in parts],
            "beyond": float(by_position[(times - 1) * self.tokens :].mean()),
            "digits": [int(found[at.start - 1 : at.stop - 1].sum()) for at in answers],
            "process_seconds": round(seconds, 1),
        }

    def _write_text(
        self, recipe: Recipe, vocabulary: Vocabulary, count: int
    ) -> tuple[Tensor, list[slice]]:
        """Return so many tokens of the manual with keys, and where the digits of answers are."""
        data = build_data(recipe, length=count, batch_size=1, test=0.5)
        data.setup("test")
        manual = next(iter(data.test_dataloader())).inputs[0].tolist()

        told = [vocabulary.encode(f"\n\n{SENTENCE}{name} is {key}.\n\n") for name, key in KEYS]
        asked = [vocabulary.encode(f"\n{SENTENCE}{name} is {key}") for name, key in KEYS]
        kept = count - sum(map(len, (*told, *asked)))
        places = [int(kept * (at + 0.5) / len(KEYS)) for at in range(len(KEYS))]
        text, before = [], 0
        for place, sentence in zip(places, told, strict=True):
            text += manual[before:place] + sentence
            before = place
        text += manual[before:kept]

        answers = []
        for question in asked:
            text += question
            answers.append(slice(len(text) - DIGITS, len(text)))
        return torch.tensor(text), answers


def tabulate_published(study: Published) -> list[list[str]]:
    """Return the rows of the table: loss and digits of the keys, for each length and method."""
    rows = [["", "tokens", "loss", "digits"]]
    for name, found in study.found.items():
        if isinstance(found, dict):
            method, times = name.split()
            tokens = f"{study.tokens * int(times):,}"
            rows.append(
                [method, tokens, f"{found['beyond']:.4f}", " ".join(map(str, found["digits"]))]
            )
    return rows


def main(folder: Path, weights: Path | None, *, small: bool) -> None:
    """Measure what is missing, print the table, write both files."""
    if weights is not None:
        published = Published(weights, folder, small)
        published.measure()
        print(format_table([tuple(row) for row in tabulate_published(published)]))
        return

    studies = [Study(recipe, folder, small) for recipe in TASKS]
    for study in studies:
        study.measure_untrained()
        study.measure_trained()
    studies[0].export()
    for study in studies:
        print(study.metric, format_table([tuple(row) for row in tabulate(study.found)]), sep="\n")
    write(studies, folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("weights", nargs="*", default=[], metavar="WEIGHTS|small")
    known = parser.parse_args()
    paths = [Path(word) for word in known.weights if word != "small"]
    if len(paths) > 1 or not all(path.exists() for path in paths):
        parser.error(
            f"{paths[-1]}: no file or folder" if len(paths) == 1 else "one model at a time"
        )
    main(known.folder, paths[0] if paths else None, small="small" in known.weights)
