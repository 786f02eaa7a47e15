"""Train recipes as a user would, with `zoo fit` in processes of their own, and judge their steps."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
NON_FINITE = 3
"""Exit code of `zoo fit` after a number that is not finite."""
TERMINATED = 143
"""Exit code of `zoo fit` after SIGTERM."""
USUAL: Mapping[str, Any] = {
    "trainer.max_epochs": None,
    "trainer.ema_decay": 0.99,
    "trainer.accumulate_grad_batches": 2,
    "trainer.num_threads": 1,
    "diagnostics.every_n_steps": 10,
    "diagnostics.max_overhead": 1,
}
ON_GPU: Mapping[str, Any] = {
    "trainer.precision": "bf16-mixed",
    "optim.fused": True,
    "trainer.profile": {"steps": [20, 24]},
}


class Fit:
    """A training with `zoo fit`, and what its probe measured.

    Args:
        recipe: The recipe.
        folder: The folder of its run and files.
        device: The accelerator.
        limit: Seconds after which it is killed.
        steps: Number of its steps.
        batch: Samples of a backward pass; by default the recipe's.
    """

    def __init__(
        self,
        recipe: str,
        folder: Path,
        device: str,
        limit: float,
        steps: int = 30,
        batch: int | None = None,
    ) -> None:
        self.recipe, self.folder, self.device, self.limit = recipe, folder, device, limit
        self.steps, self.batch = steps, batch
        self.run = folder / "run"
        self.out = folder / "probe.json"

    def list_words(self, command: str, changes: Mapping[str, Any]) -> list[str]:
        """Return the words of a command on the recipe."""
        keys = {**USUAL, **(ON_GPU if self.device == "cuda" else {}), **changes}
        keys |= {"trainer.accelerator": self.device, "trainer.max_steps": self.steps}
        keys["trainer.save_every_n_steps"] = self.steps // 3
        if self.batch is not None:
            keys["data.batch_size"] = self.batch
        words = [sys.executable, "-m", "zoo", command, "--plugin", "gpu_probes", self.recipe]
        return [*words, *(f"{key}={json.dumps(value)}" for key, value in keys.items())]

    def start(
        self, changes: Mapping[str, Any] = {}, words: Sequence[str] = (), **probe: Any
    ) -> subprocess.CompletedProcess[str]:
        """Train with changed keys of the recipe and options of the probe, and wait for the end."""
        callback = {"name": "step_probe", "out": str(self.out), **probe}
        command = self.list_words("fit", {"trainer.callbacks": [callback], **changes})
        return self._call([*command, "--run-dir", str(self.run), "--json", *words])

    def predict_memory(self) -> float:
        """Return the GB that `zoo show` states."""
        shown = self._call(self.list_words("show", {})).stdout
        return float(re.search(r"memory: ([\d.]+) GB", shown)[1])

    def _call(self, words: list[str]) -> subprocess.CompletedProcess[str]:
        paths = [str(HERE), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        return subprocess.run(
            words, capture_output=True, text=True, timeout=max(self.limit, 1), env=environment
        )

    def read(self) -> dict[str, Any]:
        """Return what the probe measured."""
        return json.loads(self.out.read_text())


def check_code(done: subprocess.CompletedProcess[str], expected: int = 0) -> None:
    """Raise RuntimeError if a process ended with another code."""
    if done.returncode != expected:
        raise RuntimeError(f"exit code {done.returncode}, not {expected}: {done.stderr[-300:]}")


def train_recipe(fit: Fit, changes: Mapping[str, Any] = {}) -> dict[str, Any]:
    """Train to the end; return the facts, and what is wrong with them."""
    done = fit.start(changes)
    check_code(done)
    facts = fit.read()
    facts["loss"] = json.loads(done.stdout)["metrics"].get("test/loss")
    facts["loader of step"] = facts["loader_ms"] / facts["step_ms"]
    traces = sorted(fit.run.glob("trace-*.json.gz"))
    if fit.device == "cuda":
        facts["predicted_gb"] = fit.predict_memory()
        facts["peak of predicted"] = facts["peak_gb"] / facts["predicted_gb"]
        facts["idle_share"] = measure_idle(traces[0]) if traces else None
    return facts


def plant_wait(fit: Fit) -> dict[str, Any]:
    """Train with a read in each step, which the record of waits must show."""
    check_code(fit.start(plant="wait"))
    facts = fit.read()
    if not any(line.startswith("step_probe.py") for line in facts["waits"]):
        raise RuntimeError(f"the planted wait is not among {facts['waits']}")
    return facts


def plant_nan(fit: Fit) -> dict[str, Any]:
    """Break a weight; the guard must end the training with its own exit code and a replay."""
    done = fit.start(plant="nan", at=3)
    check_code(done, NON_FINITE)
    if not (fit.run / "replay.pt").exists():
        raise RuntimeError("there is no replay.pt")
    return {"steps": fit.read()["steps"], "message": done.stderr.strip().splitlines()[-1][:200]}


def stop_and_resume(fit: Fit, whole: Mapping[str, Any]) -> dict[str, Any]:
    """Stop a training by a signal and resume it; it must end as the one in one go.

    Args:
        fit: The training.
        whole: The facts of `train_recipe` with the same recipe.
    """
    check_code(fit.start(plant="stop", at=fit.steps // 2), TERMINATED)
    stopped = fit.read()["steps"]
    done = fit.start(words=["--resume", "auto"])
    check_code(done)
    loss = json.loads(done.stdout)["metrics"].get("test/loss")
    facts = {"stopped": stopped, "loss": loss, "loss in one go": whole["loss"]}
    # kernels that add in any order differ in the last bits, which a few steps enlarge
    if abs(loss - whole["loss"]) > 2e-2 * abs(whole["loss"]):
        raise RuntimeError(f"another loss than in one go: {facts}")
    return facts


def measure_idle(path: Path) -> float:
    """Return the share of a trace's time in which the device computes nothing."""
    with gzip.open(path, "rt") as file:
        events = json.load(file)["traceEvents"]
    spans = sorted(
        (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    )
    if not spans:
        return 1.0
    busy, end = 0.0, spans[0][0]
    for start, stop in spans:
        busy += max(stop - max(start, end), 0)
        end = max(end, stop)
    return 1 - busy / (end - spans[0][0])
