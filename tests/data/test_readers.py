"""Any bytes in any file give data, or a DataError that names the file, within its memory."""

import os
import random
import resource
import shutil
import struct
import tracemalloc
import unicodedata
import zipfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from damages import DAMAGES as PLACES
from damages import restore
from file_samples import SAMPLES, draw_picture, list_reading_sources, read_all, write_npz

from zoo import registry, utils
from zoo.data.base import DataModule
from zoo.errors import DataError

pytest.importorskip("datasets")
pytestmark = pytest.mark.robustness

GIBIBYTE = 2**30


def _flip(path):
    content = bytearray(path.read_bytes())
    draw = random.Random(len(content))
    for _ in range(8):
        content[draw.randrange(len(content))] = draw.randrange(256)
    path.write_bytes(content)


def _claim_lengths(path):
    """Write large numbers where a format may have a length."""
    content = bytearray(path.read_bytes())
    for at in range(4, len(content) - 8, max(len(content) // 4, 8)):
        content[at : at + 8] = struct.pack("<Q", 2**40)
    path.write_bytes(content)


def _insert_escapes(path):
    content = path.read_bytes()
    middle = len(content) // 2
    path.write_bytes(content[:middle] + b"\x1b[2J\x07" + content[middle:])


DAMAGES = {
    **PLACES,
    "bytes changed": _flip,
    "lengths": _claim_lengths,
    "escapes": _insert_escapes,
    "random": lambda path: path.write_bytes(random.Random(0).randbytes(999)),
}
EACH = 2
"""Number of damages of each kind of file of a source; in turn they are all of them."""


def list_cases():
    names, start = [*DAMAGES], 0
    for source, forms in SAMPLES.items():
        for form in forms:
            yield source, form, [names[(start + n) % len(names)] for n in range(EACH)]
            start += EACH


CASES = [*list_cases()]


@contextmanager
def limit_memory():
    """Let allocations of more than a GiB fail, as they would for want of memory."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + GIBIBYTE, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def choose_file(folder, source, form):
    """Return the file of samples, or the tokenizer; of folders, the first picture or text."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if form == "tokenizer":
        return folder / "tokenizer.json"
    return next((one for one in files if one.name.startswith(("table", "train"))), files[0])


def check_message(error, place):
    message = str(error)
    # a stream and a folder are named, and their files by the library
    assert any(str(one) in message for one in (place, place.parent, place.parent.parent)), message
    shown = [letter for letter in message if letter != "\n"]
    assert not [letter for letter in shown if unicodedata.category(letter) in ("Cc", "Cf", "Cs")]


def test_every_source_of_files_is_read_here():
    assert sorted(SAMPLES) == list_reading_sources()
    met = {one for _, _, names in CASES for one in names}
    assert met == {*DAMAGES}


@pytest.mark.parametrize(("source", "form", "names"), CASES, ids=lambda one: str(one)[:20])
def test_any_bytes_give_data_or_an_error_that_names_the_file(source, form, names, tmp_path):
    (tmp_path / "sound").mkdir()
    options = SAMPLES[source][form](tmp_path / "sound")
    for number, name in enumerate(names):
        folder = tmp_path / f"copy{number}"
        shutil.copytree(tmp_path / "sound", folder)
        own = {
            key: value.replace(str(tmp_path / "sound"), str(folder))
            if isinstance(value, str)
            else value
            for key, value in options.items()
        }
        place = choose_file(folder, source, form)
        DAMAGES[name](place)
        with limit_memory():
            try:
                list(read_all(source, own))
            except DataError as error:
                check_message(error, place)


@pytest.mark.parametrize(
    ("source", "form"), [(source, next(iter(forms))) for source, forms in SAMPLES.items() if forms]
)
def test_sound_samples_are_read(source, form, tmp_path):
    assert len(list(read_all(source, SAMPLES[source][form](tmp_path)))) >= 3


TEXT, PICTURE = b"a text of several words, " * 8, draw_picture(0)
PREDICTED = {
    "text": (".txt", ".txt", TEXT),
    "text_table": (".jsonl", ".txt", TEXT),
    "text_classification": ("folders", ".txt", TEXT),
    "python_docs": ("tokenizer", ".txt", TEXT),
    "images": ("png", ".png", PICTURE),
    "image_masks": ("folders", ".png", PICTURE),
    "points": (".npz", ".npz", None),
}
"""{source: the kind of its samples, and the suffix and content of a file to predict}"""


def test_every_source_that_reads_files_to_predict_is_read_here():
    found = [
        name
        for name in SAMPLES
        if registry.find("data", name).read_files is not DataModule.read_files
    ]
    assert sorted(found) == sorted(PREDICTED)


@pytest.mark.parametrize("source", PREDICTED)
def test_any_bytes_of_a_file_to_predict_give_a_sample_or_its_error(source, tmp_path):
    form, suffix, content = PREDICTED[source]
    (tmp_path / "sound").mkdir()
    options = SAMPLES[source][form](tmp_path / "sound")
    data = registry.find("data", source)(0, **options)
    spec = data.spec
    content = content or Path(options["path"]).read_bytes()
    file = tmp_path / f"input{suffix}"
    file.write_bytes(content)
    for damage in (lambda _: None, *DAMAGES.values()):
        restore(file, content)
        damage(file)
        with limit_memory():
            batches = list(data.read_files([file], spec))
        assert {path for one in batches for path in (*one.paths, *one.errors)} == {file}


# NPZ files


def write_header(shape, content=b"", kind="<f8"):
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}} \n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + content


ARRAYS = {
    "2^40 points": (write_header("(8, 1099511627776, 3)"), "needs 211,106,232,532,992 bytes"),
    "2^40 sets of none": (write_header("(1099511627776, 0)"), "no numbers"),
    "negative": (write_header("(-8, -4)", bytes(8 * 32)), "cannot be read"),
    "not closed": (write_header("(8, 4, 3"), "cannot be read"),
    "no array": (b"hello", "cannot be read"),
    "objects": (write_header("(8, 4, 1)", bytes(999), "|O"), "objects of Python"),
    "version 3": (b"\x93NUMPY\x03\x00" + bytes(99), "cannot be read"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_is_read_within_the_memory_of_its_file(name, tmp_path):
    content, message = ARRAYS[name]
    options = write_npz(tmp_path, {"x.npy": content})
    tracemalloc.start()
    with limit_memory(), pytest.raises(DataError, match=rf"points\.npz, array x: .*{message}"):
        list(read_all("points", options))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2**24


@pytest.mark.parametrize(("flag", "method"), [(1, 0), (0, 97)])
def test_an_archive_that_cannot_be_opened_is_named(flag, method, tmp_path):
    path = Path(write_npz(tmp_path, {})["path"])
    content = bytearray(path.read_bytes())
    for mark, flags, way in ((b"PK\1\2", 8, 10), (b"PK\3\4", 6, 8)):
        for at in [n for n in range(len(content)) if content[n : n + 4] == mark]:
            content[at + flags] |= flag
            content[at + way] = method or content[at + way]
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"points\.npz, array x: cannot be read"):
        list(read_all("points", {"path": str(path), "classes": 2}))


def test_an_archive_with_a_wrong_size_is_named(tmp_path):
    options = write_npz(tmp_path, {})
    with zipfile.ZipFile(options["path"]) as archive:
        size = archive.getinfo("x.npy").file_size
    content = Path(options["path"]).read_bytes()
    Path(options["path"]).write_bytes(
        content.replace(struct.pack("<I", size), struct.pack("<I", 2**31))
    )
    with limit_memory(), pytest.raises(DataError, match=r"points\.npz"):
        list(read_all("points", options))


def test_float16_and_big_endian_arrays_are_read(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 4, 2)).astype(">f4")
    np.savez(
        tmp_path / "points.npz",
        x=x,
        pos=np.asfortranarray(rng.normal(size=(8, 4, 1))).astype("f2"),
        target=np.arange(8) % 2,
    )
    options = {"path": str(tmp_path / "points.npz"), "classes": 2, "val": 0.25, "test": 0.25}
    batches = list(read_all("points", options))
    found = np.concatenate([batch.x.numpy() for batch in batches])
    assert {*found.ravel()} == {*x.astype(np.float32).ravel()}


# names


@pytest.mark.parametrize(
    ("source", "form"), [(source, next(iter(forms))) for source, forms in SAMPLES.items()]
)
def test_names_that_are_not_utf_8_are_read_or_named(source, form, tmp_path):
    options = SAMPLES[source][form](tmp_path)
    name = os.fsdecode(b"caf\xe9\x1b")
    if source == "text_stream" and form != "tokenizer":
        # the files of a folder are splits by their names
        place = tmp_path.with_name(f"{tmp_path.name}{name}")
        old = tmp_path
    else:
        old = choose_file(tmp_path, source, form)
        place = old.with_name(f"{name}{''.join(old.suffixes)}")
    old.rename(place)
    own = {
        key: value.replace(str(old), str(place)) if isinstance(value, str) else value
        for key, value in options.items()
    }
    other = tmp_path / "masks" / old.name
    if other.exists():
        other.rename(other.with_name(place.name))
    try:
        list(read_all(source, own))
    except DataError as error:
        message = str(error)
        assert r"caf\udce9\x1b" in message or str(tmp_path) in message
        assert message.isprintable()


# the guard


def test_memory_that_runs_out_says_nothing_about_a_sample():
    errors = {}
    with (
        pytest.raises(DataError, match="a file: out of memory"),
        utils.collect_damage(errors, 0, "a file"),
    ):
        raise MemoryError
    assert not errors
    with utils.collect_damage(errors, 0, "a\x1b file"):
        raise RuntimeError("one\x07\ntwo")
    assert errors == {0: r"a\x1b file: one\x07"}


def test_interrupts_pass_the_guard():
    for kind in (KeyboardInterrupt, SystemExit, GeneratorExit):
        with pytest.raises(kind), utils.guard_reading("a file"):
            raise kind
