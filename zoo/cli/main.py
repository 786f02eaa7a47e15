"""The `zoo` command: parse the arguments, run one command, turn errors into exit codes."""

from __future__ import annotations

import argparse
import contextlib
import copy
import logging
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, NoReturn

from zoo.cli.commands import COMMANDS, Command
from zoo.cli.completion import PrintCompletion
from zoo.cli.edge import COMMAND_LINE
from zoo.cli.hints import name_zoo, write_command, write_example
from zoo.cli.imports import handle_imports
from zoo.cli.mistakes import check_words, explain_argument, explain_command, find_flags_as_keys
from zoo.errors import ARGUMENT, ConfigIssue, Message, RecipeError, ZooError
from zoo.packages import explain_imports, list_missing, suggest_install
from zoo.registry import PLUGINS
from zoo.utils import (
    EscapingFormatter,
    escape_text,
    explain_memory,
    keep_freed_memory,
    limit_spinning,
)
from zoo.version import __version__

SECTIONS = ("seed", "model", "data", "task", "optim", "trainer", "evaluate", "generate", "predict")
"""Sections of recipes, whose words need no second look."""


def find_command(name: str) -> Command:
    """Return a command of the table; only its own file is imported."""
    entry = COMMANDS[name]
    if isinstance(entry, Command):
        return entry
    command: Command = import_module(entry).COMMAND
    return command


def join_command(arguments: Sequence[str]) -> list[str]:
    """Return the words of a command line; `compare rank` is one, since argparse has no other."""
    joined = " ".join(arguments[:2])
    return [joined, *arguments[2:]] if joined in COMMANDS else [*arguments]


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are config errors, with a hint."""

    example = ""
    """A line of the command, for messages."""

    def error(self, message: str) -> NoReturn:
        """Raise RecipeError in place of exiting."""
        see = f"see {self.prog} --help"
        hint = see
        if self.example and "required" in message:
            hint = f"write it as in `{self.example}`, or {see}"
        raise RecipeError(ConfigIssue(ARGUMENT, "", message, hint))

    def list_arguments(self, args: argparse.Namespace) -> list[str]:
        """Return the parsed words that are no flags, in their order."""
        values: list[str] = []
        for action in self._actions:
            if not action.option_strings:
                value = getattr(args, action.dest)
                values += value if isinstance(value, list) else [value]
        return [str(word) for word in values if word is not None]


def build_parser() -> Parser:
    """Build the parser of all commands, for help and completion."""
    parser = Parser(
        prog=name_zoo(),
        description="Train, compare and inspect transformers with any positional encoding.",
        epilog=(
            "A RECIPE is a YAML file or a registered name. key=value sets one of its keys, "
            "~key removes one."
        ),
    )
    parser.add_argument("--version", action="version", version=f"zoo {__version__}")
    parser.add_argument("--print-completion", action=PrintCompletion)
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for name in COMMANDS:
        command = find_command(name)
        _add_arguments(commands.add_parser(name, help=command.summary), name, command)
    return parser


def build_command_parser(name: str) -> Parser:
    """Build the parser of the words that follow `zoo NAME`."""
    parser = Parser(prog=write_command(*name.split()))
    _add_arguments(parser, name, find_command(name))
    return parser


def _add_arguments(parser: Parser, name: str, command: Command) -> None:
    """Add the flags that all commands share, the arguments of one and its help."""
    parser.description = command.summary
    parser.example = write_example(command.example)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.set_defaults(json=False)
    parser.add_argument(
        "--plugin",
        action="append",
        metavar="MODULE",
        help="a Python package with encodings, recipes or data of your own",
    )
    if command.prints_json:
        parser.add_argument("--json", action="store_true", help="print the result as JSON")
    command.add_arguments(parser)
    for action in parser._actions:
        # argparse would name a list that may be empty among the arguments that are missing
        action.required = action.required and action.nargs != "*"
    # only the help of this command lists its options, which takes a moment to read
    if name.split()[-1] in sys.argv and {"-h", "--help"} & set(sys.argv):
        from zoo.options.description import format_options

        options = format_options(command.options)
        example = f"example:\n    {write_example(command.example)}"
        parser.epilog = "\n\n".join(filter(None, [options, example]))


def find_packages(argv: Sequence[str]) -> Sequence[str]:
    """Return the optional packages that a command line needs.

    Args:
        argv: The words after `zoo`, of a right command line.
    """
    name, *arguments = join_command(argv)
    list_packages = find_command(name).list_packages
    # most commands need none, and their files need not be read
    return list_packages(build_command_parser(name).parse_args(arguments)) if list_packages else ()


def suggest_command(*arguments: str) -> str:
    """Return a command of zoo, after the one that installs packages that it misses, if any.

    Args:
        arguments: The words after `zoo`.
    """
    missing = list_missing(find_packages(arguments))
    install = f"{suggest_install(*missing)} && " if missing else ""
    return f"{install}{write_command(*arguments)}"


def run_command(args: argparse.Namespace) -> None:
    """Run a command once its words are right.

    Args:
        args: Its parsed arguments.

    Raises:
        RecipeError: A word is wrong; nothing slow was imported.
    """
    command = find_command(args.command)
    if command.read is not None:
        from zoo.options.signature import check_early

        check_early(partial(command.read, args))
    if command.computes:
        _flush_denormals()
    if not command.is_recorded:
        command.run(args)
        return
    from zoo.api.calls import record_command

    with record_command(args.line):
        command.run(args)


def _flush_denormals() -> None:
    """Flush denormal numbers to zero in this process, in which nothing was computed yet."""
    # imports torch
    from zoo.run.machine import flush_denormals

    flush_denormals()


def main(arguments: Sequence[str] | None = None, work: Callable[[], None] | None = None) -> int:
    """Run a command and return its exit code. A user's mistake never shows a traceback.

    Args:
        arguments: The command and its arguments; by default those of this process.
        work: A function to call instead of a command, with the same log and exit codes.
    """
    limit_spinning()  # before a command imports torch
    _set_up_logging()
    argv = sys.argv[1:] if arguments is None else list(arguments)
    code = 0
    try:
        args = None if work else _parse(argv)
        # after parsing: `--help` need not pay for it
        keep_freed_memory()
        # other processes have a parent that said so
        announces = args is not None and not is_secondary_process()
        with (
            handle_imports(announces=announces),
            explain_imports(),
            explain_memory("end other programs, or choose smaller sizes"),
        ):
            if work:
                _flush_denormals()
                work()
            elif args:
                run_command(args)
    except ZooError as error:
        message = error.spell(COMMAND_LINE)
        # all processes find the same config errors; one report is enough
        if message and not (isinstance(error, RecipeError) and is_secondary_process()):
            _report(f"zoo: {message}")
        code = error.code
    except BrokenPipeError:
        # as in: zoo list | head
        pass
    except OSError as error:
        # a full disk, a directory without write permission
        where = error.filename or "input or output"
        _report(f"zoo: {where}: {error.strerror or error}")
        code = 1
    except KeyboardInterrupt:
        _report("zoo: stopped by SIGINT")
        code = 130
    except SystemExit as stop:
        # after --help or --version
        if _end_output(stop.code) != stop.code:
            return 1
        raise
    return _end_output(code)


def _end_output(code: Any) -> Any:
    """Write what is left of standard output; return the exit code, 1 where that fails."""
    error = _flush_output()
    # a reader that has seen enough is no failure
    if error is None or code or isinstance(error, BrokenPipeError):
        return code
    _report(f"zoo: standard output: {error.strerror or error}")
    return 1


def _report(message: str) -> None:
    """Print a message to standard error, if anybody reads that."""
    with contextlib.suppress(OSError):
        print(escape_text(message, keep="\n"), file=sys.stderr)


def _flush_output() -> OSError | None:
    """Write what is left of standard output; return why that fails, if it does."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        # Python flushes it once more at exit, and would fail again
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return error
    return None


def _set_up_logging() -> None:
    """Print messages of level INFO to standard error; DEBUG goes only to the log file of a run."""
    shown = logging.StreamHandler(sys.stderr)
    shown.setFormatter(CommandLineFormatter("%(message)s"))
    logging.basicConfig(handlers=[shown])
    logging.getLogger("zoo").setLevel(logging.DEBUG)
    for handler in logging.getLogger().handlers:
        handler.setLevel(logging.INFO)


class CommandLineFormatter(EscapingFormatter):
    """A format of log records in which messages name options as the command line does."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a record."""
        # other handlers, such as that of run.log, see the record as it was logged
        spelled = copy.copy(record)
        spelled.msg = _spell(record.msg)
        if isinstance(record.args, tuple):
            spelled.args = tuple(map(_spell, record.args))
        return super().format(spelled)


def _spell(part: Any) -> Any:
    return part.spell(COMMAND_LINE) if isinstance(part, Message) else part


def _parse(arguments: list[str]) -> argparse.Namespace:
    """Parse the arguments and make plug-ins known.

    Raises:
        RecipeError: An argument is unknown; the message names the nearest flag.
    """
    arguments = join_command(arguments)
    if arguments and not arguments[0].startswith("-"):
        if arguments[0] not in COMMANDS:
            raise RecipeError(explain_command(arguments, [*COMMANDS]))
        # importing the files of all commands would only delay this one
        name, *arguments = arguments
        parser = build_command_parser(name)
    else:
        name, parser = "", build_parser()
        if arguments and arguments[0].partition("=")[0] not in parser._option_string_actions:
            raise RecipeError(explain_argument(parser, arguments[0], ()))
    if any(_may_be_split(word) for word in arguments):
        check_words(arguments)
    # argparse gives up at overrides after a flag; they are collected below
    args, remaining = parser.parse_known_args(arguments)
    flags = [word for word in remaining if word.startswith("-")]
    if flags or (remaining and not hasattr(args, "overrides")):
        keys = _list_keys(name, args)
        raise RecipeError(explain_argument(parser, (flags or remaining)[0], keys))
    if remaining:
        # overrides that follow a flag
        args.overrides += remaining
    # words without a section may be flags, or options of the command
    single = [word for word in getattr(args, "overrides", ()) if _is_single(word)]
    if single and (
        issues := [*find_flags_as_keys(parser, single, partial(_list_keys, name, args))]
    ):
        raise RecipeError(*issues)

    args.command = name
    args.line = format_line(name, parser.list_arguments(args), args.plugin)
    if args.plugin:
        # a package in the current folder is found like an installed one
        sys.path.insert(0, os.getcwd())
        # in the environment, so that the processes which this one starts know them too
        os.environ[PLUGINS] = ",".join(args.plugin)
    return args


def format_line(name: str, arguments: Sequence[str], plugins: Sequence[str] | None) -> str:
    """Return the command line that repeats a command, quoted for a shell.

    Args:
        name: The command.
        arguments: Its arguments that are no flags.
        plugins: The plug-ins that it names.
    """
    passing = find_command(name).passing
    lasting = [word for word in arguments if word.partition("=")[0] not in passing]
    flags = [word for plugin in plugins or () for word in ("--plugin", plugin)]
    return shlex.join(["zoo", *name.split(), *lasting, *flags])


def _may_be_split(word: str) -> bool:
    """Return whether a word opens brackets that it does not close, or is an equals sign."""
    return word == "=" or any(
        word.count(opening) > word.count(closing) for opening, closing in ("[]", "{}")
    )


def _is_single(word: str) -> bool:
    """Return whether a word sets a key that is neither within a section nor a section."""
    key = word.partition("=")[0]
    return "." not in key and key not in SECTIONS


def _list_keys(name: str, args: argparse.Namespace) -> list[str]:
    """Return what a command takes as key=value: its own options, and the keys of a recipe."""
    from zoo.options.signature import read_class

    keys = [
        f"{prefix}{key}" for prefix, path in find_command(name).options for key in read_class(path)
    ]
    if hasattr(args, "overrides"):
        from zoo.config.recipe import list_keys

        keys += list_keys()
    return [*dict.fromkeys(keys)]


def is_secondary_process() -> bool:
    """Return whether this is one of several processes, but not the first.

    All of them find the same config errors before they are connected; only the first prints them.
    """
    return os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) != "0"


def entry() -> NoReturn:
    """Run the `zoo` command and exit."""
    sys.exit(main())
