"""What MkDocs asks while it builds the site: the page of each recorded comparison, which is made of its numbers."""

from pathlib import Path

from mkdocs.structure.files import File

from zoo.compare.page import html
from zoo.compare.results import Comparison


def on_files(files, config):
    docs = Path(config.docs_dir)
    for path in sorted(docs.glob("questions/*/*.json")):
        page = path.relative_to(docs).with_suffix(".html").as_posix()
        files.append(File.generated(config, page, content=html(Comparison.read(path))))
    return files
