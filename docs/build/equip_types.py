"""The table of all types of transformers: equipped, diagnosed, or refused and why.

`python docs/build/equip_types.py` builds a small model of each type, tries it, and writes
docs/equip/types.json and docs/equip/types.md. With names of types it prints their rows.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import small_models
import torch
from torch import Tensor

import zoo
from zoo.errors import OptionError
from zoo.integrations.evaluating import stirred
from zoo.integrations.interface_calls import InterfaceCall, watch_interface
from zoo.integrations.structure import accepts

FOLDER = Path(__file__).parents[1] / "equip"
RECORD, PAGE = FOLDER / "types.json", FOLDER / "types.md"
CLOSE = 1e-4  # of logits in float32, relative to the largest
SECONDS = 400  # for one type
PADDING, PARTS = 5, (7, 8, 1, 8)
COLUMNS = {
    "equal": "own positions",
    "cache": "cache",
    "padding": "padding",
    "packed": "packed",
    "alibi": "ALiBi",
    "unequip": "unequip",
    "save": "save, load",
    "diagnosed": "diagnosed",
}


def make_ids() -> Tensor:
    """Return token ids [2, N]."""
    draw = torch.Generator().manual_seed(1)
    return torch.randint(3, 120, (2, small_models.TEXT), generator=draw)


def compute(model: Any, ids: Tensor, **options: Any) -> Tensor:
    """Return the logits of one pass [B, N, V]."""
    given = {"use_cache": False} if accepts(model, "use_cache") else {}
    logits: Tensor = model(input_ids=ids, **{**given, **options}).logits
    return logits


def decode(model: Any, ids: Tensor) -> Tensor:
    """Return the logits of a text that is read in parts, with a cache."""
    cache: dict[str, Any] = {}
    found = []
    for part in ids.split(PARTS, dim=1):
        out = model(input_ids=part, use_cache=True, **cache)
        found.append(out.logits)
        names = [name for name in ("cache", "past_key_values") if name in out.keys()]  # noqa: SIM118
        cache = {names[0]: out[names[0]]}
    return torch.cat(found, 1)


def pad(model: Any, ids: Tensor) -> Tensor:
    """Return the logits of texts after padding, without those of the padding."""
    filler = torch.zeros_like(ids[:, :1]).expand(-1, PADDING)
    mask = torch.cat([filler, torch.ones_like(ids)], 1)
    options: dict[str, Any] = {"attention_mask": mask}
    try:
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        return compute(model, torch.cat([filler, ids], 1), position_ids=positions, **options)[
            :, PADDING:
        ]
    except TypeError:  # it counts tokens itself
        return compute(model, torch.cat([filler, ids], 1), **options)[:, PADDING:]


def pack(model: Any, ids: Tensor) -> Tensor:
    """Return the logits of two texts in a row, whose positions restart."""
    positions = torch.arange(small_models.TEXT).repeat(2)[None]
    return compute(model, ids.reshape(1, -1), position_ids=positions)


RUNS: Mapping[str, Callable[[Any, Tensor], Tensor]] = {
    "equal": compute,
    "cache": decode,
    "padding": pad,
    "packed": pack,
}


def is_close(found: Tensor, right: Tensor, noise: float = 0.0) -> bool:
    """Return whether logits are equal up to rounding, or four times that of the model itself."""
    return bool((found - right).abs().max() <= max(CLOSE, 4 * noise) * right.abs().max())


def measure_noise(runs: Mapping[str, Tensor | str]) -> float:
    """Return the difference between one pass and a cache of a model, if it is rounding."""
    whole, parts = runs["equal"], runs["cache"]
    if isinstance(whole, str) or isinstance(parts, str):
        return 0.0
    noise = float((whole - parts).abs().max() / whole.abs().max())
    return noise if noise < 1e-3 else 0.0


def attend_literally(call: InterfaceCall, *, has_alibi: bool = True) -> Tensor:
    """Compute an attention in float64, [B, N, H, V], from its definition.

    Args:
        call: The call of the interface.
        has_alibi: Whether scores have the bias of ALiBi, and not only the mask.
    """
    q, k, v = call.q.double(), call.k.double(), call.v.double()
    heads, count = q.shape[1], q.shape[2]
    k, v = (one.repeat_interleave(heads // one.shape[1], 1) for one in (k, v))
    scale = call.options.get("scaling") or q.shape[-1] ** -0.5
    scores = q @ k.mT * scale
    if getattr(call.module.config, "attn_temperature_tuning", False) and not call.module.use_rope:
        # Llama 4 scales queries of layers without positions; zoo does it in its place.
        steps = torch.floor((torch.arange(count).double() + 1) / call.module.floor_scale)
        scores = scores * (1 + call.module.attn_scale * torch.log1p(steps))[:, None]
    cap = call.options.get("softcap")
    scores = torch.tanh(scores / cap) * cap if cap else scores
    slopes = torch.tensor([2.0 ** (-8 * (head + 1) / heads) for head in range(heads)]).double()
    # Layers that had no positions get none.
    slopes = slopes if has_alibi and list(call.module.zoo_layer.chain) else 0 * slopes
    places = torch.arange(count)
    scores = scores - slopes[:, None, None] * (places[:, None] - places).abs()
    visible = torch.ones(count, count, dtype=torch.bool).tril()
    if call.mask is not None:
        visible = (
            visible & call.mask if call.mask.dtype == torch.bool else visible & (call.mask > -1)
        )
    if (indices := call.options.get("indices")) is not None:
        chosen = torch.zeros(len(q), count, count, dtype=torch.bool)
        visible = visible & chosen.scatter(-1, indices.long(), True)[:, None]
    scores = scores.masked_fill(~visible, -torch.inf)
    sinks = call.options.get("s_aux")
    sinks = call.options.get("sinks") if sinks is None else sinks
    if sinks is not None:
        extra = sinks.double().reshape(1, -1, 1, 1).expand(len(q), heads, count, 1)
        scores = torch.cat([scores, extra], -1)
    return (scores.softmax(-1)[..., :count] @ v).transpose(1, 2)


def check_literally(model: Any, ids: Tensor, *, has_alibi: bool = True) -> bool:
    """Return whether every attention of a model with ALiBi or `none` is that of the definition."""
    results = []

    def compare(call: InterfaceCall) -> Any:
        out = call.compute()
        if call.q.shape[2] == ids.shape[1] == call.k.shape[2]:
            results.append(is_close(out[0].double(), attend_literally(call, has_alibi=has_alibi)))
        return out

    with watch_interface(model, compare):
        compute(model, ids)
    return all(results) and bool(results)


def run_all(model: Any, ids: Tensor) -> dict[str, Tensor | str]:
    """Run a model in all ways; a way that it does not have is why."""
    found: dict[str, Tensor | str] = {}
    for name, run in RUNS.items():
        try:
            found[name] = run(model, ids)
        # A model of a library fails in its own ways.
        except Exception as error:
            found[name] = " ".join(str(error).split())[:200] or type(error).__name__
    return found


def compare_runs(
    before: Mapping[str, Tensor | str], after: Mapping[str, Tensor | str]
) -> dict[str, str]:
    """Return yes, no or the reason for each way to run a model."""
    answers, noise = {}, measure_noise(before)
    for name, right in before.items():
        found = after[name]
        if isinstance(right, str):
            answers[name] = "-"
        elif isinstance(found, str):
            answers[name] = f"no: {found}"
        else:
            answers[name] = "yes" if is_close(found, right, noise) else "no: other numbers"
    return answers


@torch.no_grad()
def study(name: str) -> dict[str, Any]:
    """Try everything with one type."""
    try:
        model = small_models.build_model(name)
    except ValueError as error:
        return {"unbuilt": str(error)}
    ids = make_ids()
    row: dict[str, Any] = {}
    with stirred(model):
        before = run_all(model, ids)
        started = time.perf_counter()
        try:
            report = zoo.equip(model, "own")
        except OptionError as error:
            row["refused"] = str(error)
        else:
            row["seconds"] = round(time.perf_counter() - started, 2)
            row["layers"], row["notes"] = report.layers, list(report.notes)
            row |= compare_runs(before, run_all(model, ids))
            zoo.unequip(model)
            row["unequip"] = "yes" if torch.equal(compute(model, ids), before["equal"]) else "no"
            row |= try_other_positions(model, ids)
        row["diagnosed"] = diagnose(model, ids)
    return row


def try_other_positions(model: Any, ids: Tensor) -> dict[str, str]:
    """Equip a model with ALiBi, save and load it."""
    zoo.equip(model, "alibi")
    row = {"alibi": "yes" if check_literally(model, ids) else "no"}
    right = compute(model, ids)
    with tempfile.TemporaryDirectory() as folder:
        try:
            zoo.save(model, folder)
            row["save"] = "yes" if is_close(compute(zoo.load(folder), ids), right) else "no"
        except Exception as error:
            problem = " ".join(str(error).split()).replace(folder, "FOLDER")
            row["save"] = f"no: {problem[:200]}"
    zoo.unequip(model)
    return row


def diagnose(model: Any, ids: Tensor) -> str:
    """Return yes, or why the attention of a plain model cannot be looked at."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            zoo.diagnose(model, {"input_ids": ids}, controls=False, to=f"{folder}/page.html")
        except OptionError as error:
            return f"no: {error}"
    return "yes"


def measure(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Try types, each for a limited time."""
    rows = {}

    def stop(number: int, frame: Any) -> None:
        raise TimeoutError(f"no answer in {SECONDS} seconds")

    signal.signal(signal.SIGALRM, stop)
    for name in names:
        signal.alarm(SECONDS)
        try:
            rows[name] = study(name)
        except Exception as error:
            rows[name] = {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
        signal.alarm(0)
        print(name, rows[name].get("refused") or rows[name].get("failed") or "", flush=True)
    return rows


def is_equipped(row: Mapping[str, Any]) -> bool:
    """Return whether a row has a model that encodings were put into, and that computes right."""
    checks = ("equal", "cache", "padding", "packed", "alibi", "unequip")
    return "equal" in row and not any(row[name].startswith("no") for name in checks)


def write_page(record: Mapping[str, Any]) -> str:
    """Return the page of all types."""
    rows = {name: row for name, row in record["rows"].items() if "unbuilt" not in row}
    equipped = [name for name, row in rows.items() if is_equipped(row)]
    diagnosed = [name for name, row in rows.items() if row.get("diagnosed") == "yes"]
    either = {*equipped, *diagnosed}
    lines = [
        "# Which models of transformers",
        "",
        f"Of the {len(record['rows'])} types of causal models in transformers "
        f"{record['transformers']}, {len(rows)} can be built small. Of these {len(equipped)} are "
        f"equipped with the same numbers in every column, {len(diagnosed)} are diagnosed, and "
        f"{len(either)} are one or the other. Written by `python docs/build/equip_types.py`.",
        "",
        'own positions: `zoo.equip(model, "own")` computes what the model does: in one pass, with',
        "a cache in parts, after padding, and packed. ALiBi: each attention equals one that is",
        "calculated in float64. `-`: the model itself does not do it. Norm weights and biases are",
        "off 1 and 0.",
        "",
        "| type | layers | " + " | ".join(COLUMNS.values()) + " |",
        "|---|---|" + "---|" * len(COLUMNS),
    ]
    refusals: dict[str, list[str]] = {}
    for name, row in sorted(rows.items()):
        reason = row.get("refused") or row.get("failed")
        if reason:
            refusals.setdefault(reason, []).append(name)
            continue
        cells = [row[column].partition(":")[0] for column in COLUMNS]
        lines.append(f"| `{name}` | {row['layers']} | " + " | ".join(cells) + " |")
    lines += ["", "## Not equipped", ""]
    for reason, names in sorted(refusals.items(), key=lambda item: item[1]):
        shown = ["diagnosed" if rows[name].get("diagnosed") == "yes" else "" for name in names]
        titles = [f"`{n}`{' (diagnosed)' if s else ''}" for n, s in zip(names, shown, strict=True)]
        lines.append(f"- {', '.join(titles)}: {reason}")
    lines += ["", "## Wrong or refused in part", ""]
    for name, row in sorted(rows.items()):
        problems = [
            f"{COLUMNS[column]}: {row[column].partition(': ')[2] or 'other numbers'}"
            for column in COLUMNS
            if str(row.get(column, "")).startswith("no") and "equal" in row
        ]
        if problems:
            lines.append(f"- `{name}`: {'; '.join(problems)}")
    unbuilt = sorted(name for name, row in record["rows"].items() if "unbuilt" in row)
    lines += ["", "## Not built small", "", ", ".join(f"`{name}`" for name in unbuilt) + ".", ""]
    return "\n".join(lines)


def read_record() -> dict[str, Any]:
    """Return what was measured last."""
    record: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    return record


def main(names: Sequence[str]) -> None:
    """Try all types and write the record and the page, or print the rows of some."""
    import transformers

    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    rows = measure(names or small_models.list_types("decoder"))
    if names:
        print(json.dumps(rows, indent=1))
        return
    record = {"transformers": version("transformers"), "torch": version("torch"), "rows": rows}
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(write_page(record), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
