"""The command line: one module for each command, which imports what it runs only when it runs."""

from zoo.cli.main import entry, main

__all__ = ["entry", "main"]
