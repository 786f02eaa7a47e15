"""Text that comes with Python: the help topics of its manual, and the modules of its library."""

from __future__ import annotations

import hashlib
import sysconfig
from pathlib import Path
from typing import Unpack

from zoo.data.corpus.corpus import CharacterSplit, Document
from zoo.data.corpus.source import CorpusOptions, CorpusSource
from zoo.registry import register

SKIPPED_FOLDERS = {"__pycache__", "idle_test", "test", "tests"}
"""Folders of tests, which some distributions of Python leave out."""
SKIPPED_PACKAGES = {"dist-packages", "encodings", "ensurepip", "pydoc_data", "site-packages"}
"""Folders of tests, and tables and topics without code, which are not read."""


@register
class PythonDocs(CorpusSource):
    """Windows of `length` tokens of the help topics, sorted by name and separated by blank lines.

    The text is that of the running Python, 465,049 characters in Python 3.11. Its `digest` shows
    whether two runs read the same text. Each topic is a document. The options are those of the
    source `text`.

    With `library`, the modules of the standard library follow, each a document: 9.9 million
    characters more in Python 3.11. Topics and modules are then ordered by a hash of their names,
    so that the three splits are alike.
    """

    def __init__(
        self,
        seed: int,
        *,
        library: bool = False,
        val: float = 0.1,
        test: float = 0.1,
        **options: Unpack[CorpusOptions],
    ) -> None:
        read = read_library if library else read_topics
        super().__init__(seed, read, CharacterSplit(val, test), **options)


def read_topics() -> list[Document]:
    """Return the help topics of the running Python."""
    from pydoc_data.topics import topics

    return [Document(name, topics[name].strip() + "\n\n") for name in sorted(topics)]


def read_library() -> list[Document]:
    """Return the help topics and the modules of the running Python, ordered by a hash of names."""
    root = Path(sysconfig.get_path("stdlib"))
    documents = [Document(f"topic {topic.name}", topic.text) for topic in read_topics()]
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).parts
        is_built = path.name.startswith("_sysconfigdata")  # differs from machine to machine
        if is_built or parts[0] in SKIPPED_PACKAGES or SKIPPED_FOLDERS.intersection(parts):
            continue
        documents.append(Document("/".join(parts), path.read_text("utf-8").strip() + "\n\n"))
    return sorted(documents, key=lambda document: hashlib.sha256(document.name.encode()).digest())
