"""Small files of every kind that a source of data reads, and how a source reads all of them."""

from __future__ import annotations

import csv
import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from zoo import registry
from zoo.data.tables.open_table import BUILDERS
from zoo.options.signature import read_option_names

COUNT = 8
"""Number of samples of a source."""
SPLITS = {"val": 0.25, "test": 0.25}
PICTURES = ("png", "jpeg", "webp", "gif", "tiff", "bmp")


def draw_picture(number: int, kind: str = "png", mode: str = "RGB") -> bytes:
    """Return the file of a picture of 8 x 8 pixels."""
    from PIL import Image

    sides = (8, 8, 3) if mode == "RGB" else (8, 8)
    high = 255 if mode == "RGB" else 2
    pixels = np.random.default_rng(number).integers(0, high, sides).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows in the format of a suffix."""
    import pyarrow
    from pyarrow import ipc, parquet

    columns = [*rows[0]]
    match path.suffix:
        case ".parquet":
            parquet.write_table(pyarrow.Table.from_pylist([*rows]), path)
        case ".arrow":
            table = pyarrow.Table.from_pylist([*rows])
            with ipc.new_stream(path, table.schema) as file:
                file.write_table(table)
        case ".jsonl" | ".json":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        case ".csv" | ".tsv":
            with path.open("w", newline="") as file:
                delimiter = "\t" if path.suffix == ".tsv" else ","
                writer = csv.DictWriter(file, columns, delimiter=delimiter)
                writer.writeheader()
                writer.writerows(rows)
        case ".gz":
            write_table(path.with_suffix(""), rows)
            path.write_bytes(gzip.compress(path.with_suffix("").read_bytes()))
            path.with_suffix("").unlink()
        case ".tar":
            with tarfile.open(path, "w") as file:
                for number, row in enumerate(rows):
                    for suffix, content in row.items():
                        info = tarfile.TarInfo(f"{number:04}.{suffix}")
                        info.size = len(content)
                        file.addfile(info, io.BytesIO(content))


def _write_rows(
    folder: Path, suffix: str, rows: Sequence[Mapping[str, Any]], **options: Any
) -> dict[str, Any]:
    path = folder / f"table{suffix}"
    write_table(path, rows)
    return {"path": str(path), **SPLITS, **options}


def _write_texts(folder: Path, suffix: str, source: str) -> dict[str, Any]:
    options: dict[str, Any] = {"length": 8, "batch_size": 2}
    if source == "text_classification":
        options["classes"] = ("cat", "dog")
    rows: list[dict[str, Any]] = [
        {"text": f"row {n} of a text, ", "label": ("cat", "dog")[n % 2]} for n in range(COUNT)
    ]
    if suffix == ".tar":
        rows = [
            {"txt": row["text"].encode(), "cls": b"01"[n % 2 :][:1]} for n, row in enumerate(rows)
        ]
        options |= {"text": "txt", **({"label": "cls"} if source == "text_classification" else {})}
    if source != "text_stream":
        return _write_rows(folder, suffix, rows, **options)
    # a stream cannot be split by fractions
    for split in ("train", "validation", "test"):
        write_table(folder / f"{split}{suffix}", rows)
    return {"path": str(folder), "samples": 2, "buffer": 4, **options}


def _write_folders(folder: Path) -> dict[str, Any]:
    for number in range(COUNT):
        path = folder / ("cat", "dog")[number % 2] / f"{number}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"text {number}")
    return {"path": str(folder), **SPLITS, "length": 8}


def _write_text(folder: Path) -> dict[str, Any]:
    (folder / "a.txt").write_text("a text of several words, " * 8)
    return {"files": str(folder / "a.txt"), "length": 8, "batch_size": 2, **SPLITS}


def _write_tokenizer(folder: Path, source: str) -> dict[str, Any]:
    from zoo.data.corpus.tokenizer import train_bpe

    options = (
        _write_text(folder)
        if source in ("text", "python_docs")
        else _write_texts(folder, ".jsonl", source)
    )
    if source == "python_docs":
        options = {"length": 8}
    path = folder / "tokenizer.json"
    path.write_text(train_bpe(["a text of several words"], 260).json)
    return {
        **options,
        "tokenizer": str(path),
        **(
            {"tokens": "subword"}
            if source != "text_classification" and source != "text_stream"
            else {}
        ),
    }


def _write_pictures(folder: Path, kind: str) -> dict[str, Any]:
    for number in range(COUNT):
        path = folder / ("cat", "dog")[number % 2] / f"{number}.{kind}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(draw_picture(number, kind))
    return {"path": str(folder), **SPLITS, "size": 8}


def _write_picture_table(folder: Path, suffix: str) -> dict[str, Any]:
    contents = [draw_picture(n) for n in range(COUNT)]
    options: dict[str, Any] = {"size": 8, "classes": 2}
    if suffix == ".tar":
        rows = [{"png": one, "cls": str(n % 2).encode()} for n, one in enumerate(contents)]
        return _write_rows(folder, suffix, rows, image="png", label="cls", **options)
    if suffix in (".parquet", ".arrow"):
        rows = [
            {"image": {"bytes": one, "path": f"{n}.png"}, "label": n % 2}
            for n, one in enumerate(contents)
        ]
        return _write_rows(folder, suffix, rows, **options)
    for number, content in enumerate(contents):
        (folder / f"{number}.png").write_bytes(content)
    rows = [{"image": f"{n}.png", "label": n % 2} for n in range(COUNT)]
    return _write_rows(folder, suffix, rows, **options)


def _write_pairs(folder: Path) -> dict[str, Any]:
    for number in range(COUNT):
        for name, mode in (("images", "RGB"), ("masks", "L")):
            (folder / name).mkdir(exist_ok=True)
            (folder / name / f"{number}.png").write_bytes(draw_picture(number, "png", mode))
    return {"path": str(folder), **SPLITS, "size": 8, "classes": 2}


def _write_pair_table(folder: Path, suffix: str) -> dict[str, Any]:
    pairs = [(draw_picture(n), draw_picture(n, "png", "L")) for n in range(COUNT)]
    options: dict[str, Any] = {"size": 8, "classes": 2}
    if suffix == ".tar":
        rows = [{"png": one, "mask.png": other} for one, other in pairs]
        return _write_rows(folder, suffix, rows, image="png", mask="mask.png", **options)
    options |= {"image": "image", "mask": "mask"}
    if suffix in (".parquet", ".arrow"):
        rows = [{"image": {"bytes": one}, "mask": {"bytes": other}} for one, other in pairs]
        return _write_rows(folder, suffix, rows, **options)
    for number, pair in enumerate(pairs):
        for name, content in zip("im", pair, strict=True):
            (folder / f"{name}{number}.png").write_bytes(content)
    rows = [{"image": f"i{n}.png", "mask": f"m{n}.png"} for n in range(COUNT)]
    return _write_rows(folder, suffix, rows, **options)


def _write_points(folder: Path, suffix: str) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    x, pos = rng.normal(size=(COUNT, 4, 2)), rng.normal(size=(COUNT, 4, 1))
    target = np.arange(COUNT) % 2
    options: dict[str, Any] = {"classes": 2, "batch_size": 2}
    if suffix.startswith(".npz"):
        path = folder / "points.npz"
        (np.savez_compressed if suffix.endswith("-") else np.savez)(
            path, x=x, pos=pos, target=target
        )
        return {"path": str(path), **SPLITS, **options}
    rows = [
        {"x": x[n].tolist(), "pos": pos[n].tolist(), "target": int(target[n])} for n in range(COUNT)
    ]
    return _write_rows(folder, suffix, rows, **options)


TABLES = (*BUILDERS, ".jsonl.gz")
Write = Callable[[Path], dict[str, Any]]
TOKENIZED = ("text", "text_table", "text_stream", "text_classification", "python_docs")
SAMPLES: dict[str, dict[str, Write]] = {
    "text": {".txt": _write_text},
    "text_table": {one: partial(_write_texts, suffix=one, source="text_table") for one in TABLES},
    "text_stream": {one: partial(_write_texts, suffix=one, source="text_stream") for one in TABLES},
    "text_classification": {
        "folders": _write_folders,
        **{one: partial(_write_texts, suffix=one, source="text_classification") for one in TABLES},
    },
    "images": {
        **{one: partial(_write_pictures, kind=one) for one in PICTURES},
        **{one: partial(_write_picture_table, suffix=one) for one in TABLES},
    },
    "image_masks": {
        "folders": _write_pairs,
        **{one: partial(_write_pair_table, suffix=one) for one in TABLES},
    },
    # cells of CSV and members of an archive are no lists of numbers
    "points": {
        one: partial(_write_points, suffix=one)
        for one in (".npz", ".npz-", ".parquet", ".arrow", ".jsonl", ".json", ".jsonl.gz")
    },
    "python_docs": {},
}
"""{source: {kind of file: a function that writes samples and returns the options}}"""
for name in TOKENIZED:
    SAMPLES[name]["tokenizer"] = partial(_write_tokenizer, source=name)


def list_reading_sources() -> list[str]:
    """Return the names of registered sources with an option that names files."""
    named = {"path", "files", "tokenizer"}
    return [name for name in registry.names("data") if named & {*read_option_names("data", name)}]


def read_all(source: str, options: Mapping[str, Any]) -> Iterator[Any]:
    """Read everything that a training, a test and a prediction read; yield the batches."""
    data = registry.find("data", source)(0, **options)
    data.check_source()
    spec = data.spec
    for split in ("train", "val", "test"):
        data.count_classes(split)
    data.setup("fit")
    yield from data.train_dataloader()
    yield from data.val_dataloader()
    data.setup("test")
    yield from data.test_dataloader()
    del spec


def write_npz(folder: Path, members: Mapping[str, bytes]) -> dict[str, Any]:
    """Write an NPZ file of points, some members of which are replaced; return the options."""
    options = _write_points(folder, ".npz")
    with zipfile.ZipFile(options["path"]) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()} | members
    with zipfile.ZipFile(options["path"], "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return options
