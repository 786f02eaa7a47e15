"""The command line: a module for each verb, with what it takes and how it answers. They import zoo when they are run:
torch alone takes a second."""

from zoo.cli.main import entry, main

__all__ = ["entry", "main"]
