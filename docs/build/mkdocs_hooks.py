"""MkDocs hooks: list the pages of encodings, typeset formulas, make pages of comparisons."""

import sys
from pathlib import Path

from mkdocs.structure.files import File, InclusionLevel

from zoo import registry
from zoo.comparison.page.comparison_page import render

sys.path.insert(0, str(Path(__file__).parent))
from evidence_data import read_record
from record_figures import list_records
from typeset import typeset_page


def on_config(config):
    groups = [
        {registry.GROUPS[group]: [f"encodings/{name}.md" for name in names]}
        for group, names in registry.group_encodings().items()
    ]
    config.nav = [_add_groups(entry, groups) for entry in config.nav]
    return config


def _add_groups(entry, groups):
    """Append the pages of encodings, by group, to the section that has their index."""
    ((title, listed),) = entry.items()
    if "encodings.md" in listed and isinstance(listed, list):
        listed = listed + groups
    return {title: listed}


def on_files(files, config):
    docs = Path(config.docs_dir)
    # of docs/records the site has only these pages
    for folder in list_records():
        page = (folder / "results.html").relative_to(docs).as_posix()
        content = render(read_record(folder))
        made = File.generated(config, page, content=content, inclusion=InclusionLevel.INCLUDED)
        files.append(made)
    return files


def on_page_content(html, page, config, files):
    return typeset_page(html)
