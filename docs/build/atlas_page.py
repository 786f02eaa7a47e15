"""The recorded part of the page of atlases, from the files in docs/atlas.

`python docs/build/atlas_page.py ATLAS/atlas.json COMMAND` keeps the table of several models. With
further arguments SECONDS PACKAGE==VERSION ... it keeps what the page needs of the atlas of SmolLM2
and draws its figure. `python docs/build/pages.py` writes the page.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import zoo
from zoo.diagnosis.atlas_report import AtlasReport, AtlasRun
from zoo.diagnosis.head_jobs import NOTABLE
from zoo.diagnosis.page.atlas_page import describe_atlas
from zoo.reporting import charts
from zoo.reporting.panel import Heatmap, Panel
from zoo.reporting.style import Style
from zoo.reporting.tables import format_markdown

MARK = "## Recorded\n"
FOLDER = Path(__file__).parents[1] / "atlas"
SMOLLM2 = FOLDER / "smollm2.json"
ENCODINGS = FOLDER / "encodings.json"
FIGURE = FOLDER / "smollm2.svg"
STYLE = Style(width=260, height=300)
TURN = 1.0
FAST = 12  # of 32 pairs: they turn at least once in 400 tokens
KEPT = ("q_norm", "k_norm", "share")
JOBS = ("previous token", "first token", "same token", "induction", "duplicate token")
Record = Mapping[str, Any]


def keep_record(atlas: Path, command: str, packages: Mapping[str, str], seconds: float) -> None:
    """Write what the page needs of an atlas.

    Args:
        atlas: atlas.json of one model.
        command: The command that made it.
        packages: {package: version} of the weights and what reads them.
        seconds: Processor seconds of the command.
    """
    (run,) = json.loads(atlas.read_text(encoding="utf-8"))["runs"]
    layers = run["frequencies"]
    # heads of a group share a key head
    keys = torch.tensor([layer["k_norm"] for layer in layers])
    group = int((keys == keys[:, :1]).all(-1).all(0).sum())
    record = {
        "command": command,
        "packages": {"zoo": zoo.__version__, "torch": torch.__version__, **packages},
        "processor_seconds": seconds,
        "facts": run["facts"],
        "waves": layers[0]["waves"][0][0],
        "turns": layers[0]["turns"][0],
        "jobs": {job["title"]: _shorten(job["values"]) for job in run["jobs"]},
        **{key: [_shorten(layer[key]) for layer in layers] for key in KEPT},
        "k_norm": [_shorten(layer["k_norm"][::group]) for layer in layers],
    }
    text = json.dumps(record, separators=(",", ":"))
    # a line for each layer, so that a change of one is one
    SMOLLM2.write_text(text.replace("]],", "]],\n") + "\n", encoding="utf-8")


def keep_table(atlas: Path, command: str) -> None:
    """Write the table of the atlas of several models."""
    stored = json.loads(atlas.read_text(encoding="utf-8"))
    runs = tuple(AtlasRun.from_dict(run) for run in stored["runs"])
    report = AtlasReport(version=stored["version"], made=stored["made"], runs=runs)
    table = describe_atlas(report).sections[0].table
    assert table is not None
    seconds = [float(run.facts["seconds"]) for run in runs]
    kept = {
        "command": command,
        "version": report.version,
        "seconds": seconds,
        "heads": table.heads,
        "rows": table.rows,
    }
    ENCODINGS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def _shorten(values: Any) -> Any:
    if isinstance(values, list):
        return [_shorten(value) for value in values]
    return float(f"{values:.3g}")


def read_record() -> Record:
    """Return the record of SmolLM2."""
    found: Record = json.loads(SMOLLM2.read_text(encoding="utf-8"))
    return found


def draw_figure(record: Record) -> None:
    """Draw the mean norms of queries and keys in each pair of channels, a row for each head."""
    queries, keys = (torch.tensor(record[key]) for key in ("q_norm", "k_norm"))  # [L, H, R]
    half = len(queries) // 2
    panels = [
        _draw(queries[:half], f"Queries, layers 0 to {half - 1}", 0),
        _draw(queries[half:], f"Queries, layers {half} to {len(queries) - 1}", half),
        _draw(keys, f"Keys, layers 0 to {len(keys) - 1}", 0),
    ]
    charts.save_figure(charts.draw_panels(panels, STYLE), FIGURE)


def _draw(norms: Tensor, title: str, first: int) -> Panel:
    heads = norms.shape[1]
    return Heatmap(
        title=title,
        x="pair of channels, the fastest first",
        y=f"head, {heads} in each layer",
        caption="",
        values=norms.flatten(0, 1),
        unit="mean norm",
        signed=False,
        corner=(first * heads + 1, 1),
    )


def write_atlas_page(page: Path) -> str:
    """Return the page: its own text up to the mark, then the records."""
    text = page.read_text(encoding="utf-8").partition(MARK)[0]
    lines = ["", "Written by `python docs/build/pages.py` from the files in docs/atlas.", ""]
    lines += _describe_table(json.loads(ENCODINGS.read_text(encoding="utf-8")))
    lines += _describe_smollm2(read_record())
    return text + MARK + "\n".join(lines)


def _describe_table(record: Record) -> Iterator[str]:
    yield from ("### Encodings trained alike", "", "```sh")
    yield from (record["command"], "```", "")
    low, high = min(record["seconds"]), max(record["seconds"])
    yield (
        "The models are [small ones](weights.md#small-models-of-many-encodings) of zoo "
        f"{record['version']}, decoders of the same recipe and training except for their encoding, "
        f"and a vision transformer; {low:.0f} to {high:.0f} seconds each on a busy machine. One "
        "seed: a difference between two columns may be that of two trainings."
    )
    yield from ("", format_markdown(record["heads"], record["rows"], text=record["heads"]), "")


def _describe_smollm2(record: Record) -> Iterator[str]:
    queries, keys, share = (torch.tensor(record[key]) for key in KEPT)
    is_slow = torch.tensor(record["turns"]) < TURN
    jobs = {title: torch.tensor(values) for title, values in record["jobs"].items()}
    heads = share.shape[0] * share.shape[1]
    fast = share[..., :FAST].sum(-1)
    previous = jobs["previous token"] >= NOTABLE
    packages = ", ".join(f"{name} {version}" for name, version in record["packages"].items())
    strongest = [float((norms.argmax(-1) >= FAST).float().mean()) for norms in (queries, keys)]
    yield from ("### Frequencies of SmolLM2", "", "```sh")
    yield from (record["command"], "```", "")
    yield (
        f"{record['facts']['model'].capitalize()}, {heads} heads; {packages}; "
        f"{record['facts']['measured on']}. {record['processor_seconds']:.0f} processor seconds of "
        "one thread."
    )
    yield from ("", f"![Norms by pair of channels](atlas/{FIGURE.name})", "")
    slow_norms = [float(norms[..., is_slow].mean()) for norms in (queries, keys)]
    other_norms = [float(norms[..., ~is_slow].mean()) for norms in (queries, keys)]
    yield (
        "The quantity is that of Barbero et al. 2024 (arXiv:2410.06205): the mean norm of queries "
        "and keys in each pair of channels, here head by head. As there, norms are largest at low "
        f"frequencies. The {int(is_slow.sum())} of {len(is_slow)} pairs that make no full turn in "
        f"the trained context have a mean norm of {slow_norms[0]:.2f} in queries and "
        f"{slow_norms[1]:.2f} in keys, the others {other_norms[0]:.2f} and {other_norms[1]:.2f}. "
        f"In {100 * strongest[0]:.0f} % of the heads the largest norm of queries is past the "
        f"{FAST} fastest pairs, and so it is in {100 * strongest[1]:.0f} % of the key heads."
    )
    yield ""
    low, high = float(fast[previous].min()), float(fast[previous].max())
    yield (
        f"High frequencies have the job that the paper gives them: of the {int(previous.sum())} "
        f"heads that attend to the previous token (score {NOTABLE} or more), the {FAST} fastest "
        f"pairs carry {100 * low:.0f} to {100 * high:.0f} % of the scores; of all heads "
        f"{100 * float(fast.mean()):.0f} % in the mean. This is a correlation: no pair was removed."
    )
    yield ""
    rows = [
        [title, f"{int((values >= NOTABLE).sum())} of {heads}", f"{float(values.max()):.2f}"]
        for title, values in jobs.items()
    ]
    yield format_markdown(["job", f"heads from {NOTABLE}", "best score"], rows, text=["job"])
    yield ""


if __name__ == "__main__":
    given, made_by, *others = sys.argv[1:]
    if others:
        packages = dict(word.split("==") for word in others[1:])
        keep_record(Path(given), made_by, packages, float(others[0]))
        draw_figure(read_record())
    else:
        keep_table(Path(given), made_by)
