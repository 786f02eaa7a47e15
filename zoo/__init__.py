"""zoo trains, compares and explains transformers by how they know position."""

from zoo.version import __version__ as __version__

_modules: dict[str, str] = {}


def _read_stub() -> dict[str, str]:
    """Return the module of each public name, as __init__.pyi imports them; read the file once."""
    if not _modules:
        import ast
        from pathlib import Path

        tree = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
        imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
        _modules.update({alias.name: str(node.module) for node in imports for alias in node.names})
    return _modules


def __getattr__(name: str) -> object:
    """Import a public name on first use, so that `zoo --help` need not wait for torch."""
    if name.startswith("__") and name != "__all__":
        raise AttributeError(f"module 'zoo' has no attribute {name!r}")
    modules = _read_stub()
    if name == "__all__":
        # functions and classes only: no module, and not __version__
        return sorted(set(modules) - {"functional", "__version__"})
    if name not in modules:
        from zoo.suggestions import TYPO, find_meant, offer

        meant = find_meant(name, sorted(modules), TYPO)
        hint = f"; {offer(name, meant)}" if meant else ""
        raise AttributeError(f"module 'zoo' has no attribute {name!r}{hint}")

    import importlib

    from zoo.packages import explain_imports

    with explain_imports():
        if modules[name] == "zoo":
            return importlib.import_module(f"zoo.{name}")
        return getattr(importlib.import_module(modules[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_read_stub()})
