"""What MkDocs asks while it builds the site: the pages of encodings are listed as they are found, absent ones are not."""

from pathlib import Path


def on_config(config):
    docs = Path(config.docs_dir)
    pages = sorted(path.relative_to(docs).as_posix() for path in docs.glob("encodings/*.md"))
    config.nav = [_section(entry, docs, pages) for entry in config.nav]
    return config


def _section(entry, docs, pages):
    """A section with the pages that are there; those of encodings after their index."""
    ((title, listed),) = entry.items()
    if isinstance(listed, str):
        return entry
    found = [page for page in listed if (docs / page).exists()]
    return {title: found + pages if "encodings.md" in found else found}
