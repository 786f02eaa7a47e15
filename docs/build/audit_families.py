"""The table of all families of transformers that `zoo audit` was asked about.

`python docs/build/audit_families.py` builds a small model of each decoder and encoder, asks it all
laws, and adds a row to docs/audit/families.jsonl; families that have a row there of the installed
versions are left out, so that it can be interrupted. It writes docs/audit/families.md each time.
With names of families it prints their reports and writes nothing.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import small_models
import torch
import transformers

from zoo.auditing.model_folder import build_small
from zoo.auditing.model_subjects import make_subject
from zoo.auditing.run_laws import audit_subject

FOLDER = Path(__file__).parents[1] / "audit"
RECORD, PAGE = FOLDER / "families.jsonl", FOLDER / "families.md"
SECONDS = 60  # of computation, for one family
PATIENCE = 1500  # seconds for one family, on a machine that does other things, too
MEGABYTES = 5000
COUNTS_PADDING = "the class takes no position ids and counts padding, too"
CONVOLVES_PADDING = "a convolution over tokens reads padding, which no mask hides from it"
POOLS_PADDING = "pairs of tokens are pooled, and which are pairs depends on the padding"
INFERRED = "inferred from the report, without a script: "
STATE = "the state of recurrent layers or convolutions runs on into the next text"
SINGLE = "the state is read for single tokens only"
MISPLACED = "relative biases of the predicting streams are those of other tokens, later ones too"
NO_DECODER = "the class needs is_decoder=True, which its configuration does not have by default"
REMARKS = {
    ("bamba", "cache"): "without position ids, calls with a cache count from 0",
    ("bamba", "packing"): STATE,
    ("bart", "left_padding"): COUNTS_PADDING,
    ("mbart", "left_padding"): COUNTS_PADDING,
    ("mvp", "left_padding"): COUNTS_PADDING,
    ("marian", "left_padding"): COUNTS_PADDING,
    ("ministral3", "shift"): "by design: queries past the original length are scaled by position",
    ("bert-generation", "future"): NO_DECODER,
    ("bert-generation", "packing"): NO_DECODER,
    ("bigbird_pegasus", "left_padding"): COUNTS_PADDING,
    ("blenderbot-small", "left_padding"): COUNTS_PADDING,
    ("git", "left_padding"): COUNTS_PADDING,
    ("cpmant", "future"): "by design: the class reads a prompt in both directions",
    ("deepseek_v4", "left_padding"): INFERRED
    + "blocks of compressed keys are counted from the padding",
    ("deepseek_v4", "packing"): "blocks of compressed keys reach from one text into the next",
    ("falcon_mamba", "cache"): SINGLE,
    ("convbert", "left_padding"): CONVOLVES_PADDING,
    ("convbert", "right_padding"): CONVOLVES_PADDING,
    ("nystromformer", "left_padding"): CONVOLVES_PADDING,
    ("nystromformer", "right_padding"): CONVOLVES_PADDING,
    ("funnel", "left_padding"): POOLS_PADDING,
    ("funnel", "right_padding"): POOLS_PADDING,
    ("mra", "order"): "without its CUDA kernel, the attention returns zeros and no message",
    ("mamba", "cache"): SINGLE,
    ("zamba", "cache"): SINGLE,
    ("moshi", "cache"): "masks have no window, which only the cache keeps",
    ("moshi", "left_padding"): "masks have no window, which only the cache keeps",
    ("moshi", "window"): "masks have no window, which only the cache keeps",
    ("openai-gpt", "packing"): "by design: the class takes no mask of pairs to keep texts apart",
    ("pegasus", "left_padding"): COUNTS_PADDING,
    ("trocr", "left_padding"): COUNTS_PADDING,
    ("prophetnet", "future"): MISPLACED,
    ("prophetnet", "cache"): MISPLACED,
    ("prophetnet", "left_padding"): MISPLACED,
    ("prophetnet", "right_padding"): MISPLACED,
    ("xlnet", "future"): "by design: tokens see all others, but those that a perm_mask hides",
    ("inkling2_loop_text", "packing"): STATE,
    ("zaya", "packing"): STATE,
    ("inkling2_loop_text", "window"): INFERRED
    + "by design: short convolutions mix keys in the window with those before it",
}
HYBRIDS = ("lara_mini", "lfm2_moe", "lfm3", "minimax", "olmo_hybrid", "qwen3_5", "qwen3_5_moe")
HYBRIDS += ("qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "zamba")
REMARKS |= {(name, "packing"): STATE for name in HYBRIDS}
"""{(family, law): what was found where a report was looked at}"""
FIELDS = ("law", "error", "bound", "since", "module", "cause", "explanation")


def list_families() -> Iterator[tuple[str, str]]:
    """Yield the kind and the type of each family, encoders first, which are asked few laws."""
    for kind in ("encoder", "decoder"):
        for name in small_models.list_types(kind):
            yield kind, name


def build(kind: str, name: str) -> tuple[Any, str]:
    """Build a small model that reads a text, and name the way in which it was made small.

    Raises:
        ValueError: It cannot be built.
    """
    ids = torch.arange(3, 3 + small_models.TEXT)[None]
    try:
        # As `zoo audit FOLDER size=small` does with the configuration of a folder.
        model = build_small(transformers.AutoConfig.for_model(name))
        count = sum(parameter.numel() for parameter in model.parameters())
        if count <= small_models.LARGEST:
            with torch.no_grad():
                model(input_ids=ids)
            return model, "size=small"
    # Configurations and models of a library fail in many ways.
    except Exception:
        pass
    return small_models.build_model(name, kind), "sizes"


def study(kind: str, name: str) -> dict[str, Any]:
    """Ask a small model of a family all laws."""
    try:
        model, way = build(kind, name)
    except ValueError as error:
        return {"unbuilt": str(error)}
    start = time.process_time()
    report = audit_subject(make_subject(model))
    return {
        "class": type(model).__name__,
        "built": way,
        "laws": {result.law: result.status for result in report.results},
        "broken": [{key: asdict(one)[key] for key in FIELDS} for one in report.broken],
        "reasons": {one.law: one.reason for one in report.results if one.reason},
        "notes": list(report.notes),
        "seconds": round(time.process_time() - start, 1),
    }


def measure(kind: str, name: str) -> dict[str, Any]:
    """Return the row of a family, which is studied in a process of its own.

    The process is ended past `SECONDS` of computation, `MEGABYTES` of memory or `PATIENCE` seconds
    in all. A limit of the system would not do: models refuse what they cannot do with the same
    errors that a lack of memory gives.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        # Where memory ends before the limit is seen, the system ends this process first.
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="utf-8")
        try:
            row = study(kind, name)
        except Exception as error:
            row = {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
        with os.fdopen(writer, "w") as file:
            file.write(json.dumps(row))
        os._exit(0)
    os.close(writer)
    start, peak, problem = time.monotonic(), 0, ""
    while not problem and not select.select([reader], [], [], 0.1)[0]:
        seconds, megabytes = read_use(child)
        peak = max(peak, megabytes)
        if seconds > SECONDS:
            problem = f"no answer in {SECONDS} seconds"
        elif megabytes > MEGABYTES:
            problem = f"needs more than {MEGABYTES:,} MB"
        elif time.monotonic() - start > PATIENCE:
            problem = f"waits for more than {PATIENCE} seconds"
    if problem:
        os.kill(child, signal.SIGKILL)
    with os.fdopen(reader) as file:
        text = file.read()
    _, status, usage = os.wait4(child, 0)
    row = json.loads(text) if text else {"failed": problem or f"the process ended with {status}"}
    row["megabytes"] = max(peak, round(usage.ru_maxrss / 1024))
    return {"kind": kind, "name": name, **row}


def read_use(process: int) -> tuple[float, int]:
    """Return the seconds of computation and the MB of memory of a process."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return 0.0, 0
    ticks = int(stat[11]) + int(stat[12])
    return ticks / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE") // 2**20


def read_processor() -> str:
    """Return the name of the processor and its number of cores."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    name = next(line.partition(": ")[2] for line in lines if line.startswith("model name"))
    return f"{name}, {os.cpu_count()} cores"


def read_rows() -> list[dict[str, Any]]:
    """Return the rows of the record."""
    if not RECORD.exists():
        return []
    return [json.loads(line) for line in RECORD.read_text(encoding="utf-8").splitlines()]


def write_page(rows: Sequence[dict[str, Any]]) -> str:
    """Return the page of the families that have a row, with the names of those that have none."""
    reached = {(row["kind"], row["name"]) for row in rows}
    families = [*list_families()]
    missing = [f"`{name}`" for kind, name in families if (kind, name) not in reached]
    built = [row for row in rows if "laws" in row]
    sound = [row for row in built if not row["broken"]]
    days = sorted({row["date"] for row in rows})
    processors = sorted({row["processor"] for row in rows})
    seconds = sorted(row["seconds"] for row in built)
    lines = [
        "# Families that were audited",
        "",
        f"`zoo audit` of {len(built)} of the {len(families)} families of decoders and encoders in "
        f"transformers {rows[0]['transformers']} with torch {rows[0]['torch']}, "
        f"{' to '.join(days[:1] + days[1:][-1:])}, on {', '.join(processors)}, one thread. Each "
        "is a small model with random weights: of the default configuration as `size=small` "
        "builds it, or with sizes that its class takes.",
        f"{len(sound)} keep all laws that they were asked, {len(built) - len(sound)} break one or "
        f"more. A family takes {seconds[len(seconds) // 2]} seconds of computation in the median, "
        f"{seconds[-1]} at most, and up to {max(row['megabytes'] for row in built):,} MB. Families "
        f"that need more than {SECONDS} seconds or {MEGABYTES:,} MB are not audited. The audit "
        "was mended while rows were recorded: a row says what the audit of its day found, and not "
        "all were asked again. Written by `python docs/build/audit_families.py`.",
        "",
        "| family | kind | built | kept | broken | not asked | seconds | MB |",
        "|---|---|---|--:|---|--:|--:|--:|",
    ]
    for row in built:
        statuses = list(row["laws"].values())
        broken = ", ".join(one["law"] for one in row["broken"])
        lines.append(
            f"| `{row['name']}` | {row['kind']} | {row['built']} | {statuses.count('kept')} | "
            f"{broken} | {statuses.count('not asked')} | {row['seconds']} | {row['megabytes']:,} |"
        )
    lines += ["", "## What is broken", ""]
    lines += ["*Report only*: what the report says, which nobody has looked at yet.", ""]
    for row in built:
        for one in row["broken"]:
            place = f" in `{one['module']}`" if one["module"] else ""
            since = f" since position {one['since']:,}" if one["since"] is not None else ""
            reported = f"*report only*, {one['cause'] or 'the place alone'}"
            cause = REMARKS.get((row["name"], one["law"]), reported)
            lines.append(
                f"- `{row['name']}`, {one['law']}: {cause}{place}{since} "
                f"(error {one['error']:.1e}, bound {one['bound']:.1e})"
            )
    lines += ["", "## Not built small, or not audited", ""]
    lines += [
        f"- `{row['name']}`: {row.get('unbuilt') or row.get('failed')}"
        for row in rows
        if "laws" not in row
    ]
    if missing:
        lines += ["", "## Not reached", "", f"{len(missing)}: {', '.join(missing)}."]
    return "\n".join([*lines, ""])


def main(names: Sequence[str]) -> None:
    """Ask all families, or print the rows of some."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    families = [pair for pair in list_families() if not names or pair[1] in names]
    if names:
        for kind, name in families:
            print(json.dumps(measure(kind, name), indent=1), flush=True)
        return
    versions = {package: version(package) for package in ("transformers", "torch")}
    FOLDER.mkdir(exist_ok=True)
    known = {
        (row["kind"], row["name"])
        for row in read_rows()
        if all(row[package] == number for package, number in versions.items())
    }
    for kind, name in families:
        if (kind, name) in known:
            continue
        row = measure(kind, name)
        row |= {"processor": read_processor()}
        row |= {"date": datetime.now(UTC).date().isoformat(), **versions}
        with RECORD.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        PAGE.write_text(write_page(read_rows()), encoding="utf-8")
        print(kind, name, row.get("failed") or row.get("unbuilt") or row["seconds"], flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
