"""The command line. Verbs are imported when they are asked for: torch alone takes a second."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from zoo import __version__, heap, registry
from zoo.errors import Fault, RecipeError, Stopped, ZooError

KINDS = ("encodings", "recipes", "data", "tasks", "models")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb; returns the exit code. A fault of the user never shows a traceback."""
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    logging.getLogger("zoo").setLevel(logging.DEBUG)
    for handler in logging.getLogger().handlers:
        handler.setLevel(logging.INFO)
    try:
        known, more = _parser().parse_known_args(arguments)
        known.words = sys.argv[1:] if arguments is None else list(arguments)
        if any(word.startswith("-") for word in more) or (more and not hasattr(known, "overrides")):
            raise RecipeError(Fault("command line", more[0], "unknown argument", "see zoo --help"))
        if more:  # overrides after a flag
            known.overrides += more
        if known.plugin:
            sys.path.insert(0, os.getcwd())  # a package beside the user is found like an installed one
            os.environ[registry.PLUGINS] = ",".join(known.plugin)
        heap.keep()
        known.run(known)
    except ZooError as error:
        if str(error) and not (isinstance(error, RecipeError) and _repeated()):
            print(f"zoo: {error}", file=sys.stderr)
        return error.code
    except BrokenPipeError:  # as in: zoo list | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a full disk, a directory that cannot be written
        print(f"zoo: {error.filename or 'input or output'}: {error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("zoo: stopped by SIGINT", file=sys.stderr)
        return 130
    return 0


def _repeated() -> bool:
    """Whether this is one of several processes, all of which find the same faults before they know of each other."""
    return os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) != "0"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise RecipeError(Fault("command line", "", message, f"see {self.prog} --help"))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="zoo", description="Train, compare and understand transformers by how they know position.",
        epilog="A RECIPE is a YAML file or a registered name; key=value changes one of its keys, ~key removes one.",
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"zoo {__version__}")
    verbs = parser.add_subparsers(metavar="VERB", required=True, parser_class=_Parser)

    fit = _verb(verbs, "fit", _fit, "train a recipe, then test its best checkpoint", json=True)
    fit.add_argument("recipe", metavar="RECIPE")
    fit.add_argument("overrides", nargs="*", metavar="key=value")
    fit.add_argument("--run-dir", type=Path, metavar="DIR", help="this run's own directory")
    fit.add_argument("--resume", default="never", metavar="auto|never|PATH", help="go on from a checkpoint")

    evaluate = _verb(verbs, "eval", _eval, "measure a checkpoint", json=True)
    evaluate.add_argument("checkpoint", metavar="RUN|CHECKPOINT")
    evaluate.add_argument("overrides", nargs="*", metavar="key=value")

    generate = _verb(verbs, "generate", _generate, "continue a text, token by token", json=True)
    generate.add_argument("checkpoint", metavar="RUN|CHECKPOINT")
    generate.add_argument(
        "overrides", nargs="*", metavar="key=value", help="prompt=... tokens= temperature= top_k= ..."
    )

    predict = _verb(verbs, "predict", _predict, "what a trained model says of files and folders", json=True)
    predict.add_argument("checkpoint", metavar="RUN|CHECKPOINT")
    predict.add_argument("overrides", nargs="*", metavar="PATH|key=value", help="images or texts; top=3, ...")

    diagnose = _verb(verbs, "diagnose", _diagnose, "a page about what the attention of trained models does", json=True)
    diagnose.add_argument("overrides", nargs="*", metavar="RUN|key=value", help="runs or checkpoints; samples=4, ...")

    bench = _verb(verbs, "bench", _bench, "time and memory of encodings on this machine, beside each other", json=True)
    bench.add_argument(
        "overrides",
        nargs="*",
        metavar="ENCODING|key=value",
        help="rope kerple+dape ...; rounds=5 measures=[train,decode] ...",
    )
    bench.add_argument(
        "--shape", default="lm_small", metavar="NAME", help="vit_s, vit_b, lm_small, lm_base, lm_wide, ..."
    )
    bench.add_argument("--device", default="auto", metavar="auto|cpu|cuda")
    bench.add_argument("--lengths", metavar="N,N,...", help="tokens of texts, or pixels along a side of images")

    compare = _verb(
        verbs, "compare", _compare, "which encoding, or other key, is best: a controlled experiment", json=True
    )
    compare.add_argument("recipe", nargs="?", metavar="RECIPE")
    compare.add_argument(
        "overrides", nargs="*", metavar="key=value", help="encodings=[...] vary.model.depth=[4,8] seeds=3 jobs=auto ..."
    )
    compare.add_argument("--from", dest="source", type=Path, metavar="DIR", help="tell anew what finished cells have")
    compare.add_argument("--cell", type=Path, help=argparse.SUPPRESS)  # how a comparison starts its own processes
    compare.add_argument("--tied", action="store_true", help=argparse.SUPPRESS)

    launch = _verb(verbs, "launch", _launch, "the script that starts a recipe on a cluster, and goes on with it")
    launch.add_argument("engine", metavar="slurm|torchrun")
    launch.add_argument("recipe", metavar="RECIPE")
    launch.add_argument(
        "overrides", nargs="*", metavar="key=value", help="nodes=4 devices=8 time=... and keys of RECIPE"
    )
    launch.add_argument("--print", action="store_true", help="print the script instead of writing it to a file")

    convert = _verb(verbs, "convert", _convert, "published weights as a checkpoint of a recipe", json=True)
    convert.add_argument("file", type=Path, metavar="FILE")
    convert.add_argument("recipe", metavar="RECIPE")
    convert.add_argument("overrides", nargs="*", metavar="key=value")
    convert.add_argument("--to", type=Path, metavar="OUT", help="the checkpoint to write; else FILE as .ckpt")

    check = _verb(verbs, "check", _check, "whether an encoding keeps the laws, and what was measured of it", json=True)
    check.add_argument(
        "overrides", nargs="*", metavar="ENCODING|all|key=value", help="rope ...; axes=2 laws=[...] to=DIR, its options"
    )

    listing = _verb(verbs, "list", _list, "what there is, one line each")
    listing.add_argument("kind", nargs="?", metavar="|".join(KINDS))

    show = _verb(verbs, "show", _show, "a recipe resolved, or an encoding explained")
    show.add_argument("what", metavar="RECIPE|ENCODING")
    show.add_argument("overrides", nargs="*", metavar="key=value")

    diff = _verb(verbs, "diff", _diff, "what differs between two recipes once they are resolved", json=True)
    diff.add_argument("one", metavar="RECIPE|RUN|CHECKPOINT")
    diff.add_argument("other", metavar="RECIPE|RUN|CHECKPOINT")
    diff.add_argument("overrides", nargs="*", metavar="key=value", help="changes of both")
    return parser


def _verb(verbs: Any, name: str, run: Any, summary: str, json: bool = False) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=summary, description=summary)
    parser.set_defaults(run=run, json=False)
    parser.add_argument("--plugin", action="append", metavar="MODULE", help="a package with encodings, recipes, ...")
    if json:
        parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    return parser


def _fit(known: argparse.Namespace) -> None:
    from zoo.verbs.fit import fit

    result = fit(known.recipe, known.overrides, known.run_dir, known.resume, known.words)
    if known.json and result:
        print(json.dumps(result, indent=2))


def _eval(known: argparse.Namespace) -> None:
    from zoo.verbs.evaluate import evaluate
    from zoo.verbs.results import table

    result = evaluate(known.checkpoint, known.overrides, known.words)
    if result:
        print(json.dumps(result, indent=2) if known.json else table(result))


def _generate(known: argparse.Namespace) -> None:
    from zoo.verbs.generate import generate

    result = generate(known.checkpoint, known.overrides, quiet=known.json)
    if known.json:
        print(json.dumps(result, indent=2))


def _predict(known: argparse.Namespace) -> None:
    from zoo.verbs.predict import predict

    result = predict(known.checkpoint, known.overrides, quiet=known.json)
    if known.json:
        print(json.dumps(result, indent=2))


def _diagnose(known: argparse.Namespace) -> None:
    from zoo.verbs.diagnose import diagnose

    path = diagnose(known.overrides)
    print(path.with_suffix(".json").read_text(encoding="utf-8") if known.json else path)


def _bench(known: argparse.Namespace) -> None:
    from zoo.bench.table import table
    from zoo.verbs.bench import bench

    result, stopped = bench(known.overrides, known.shape, known.device, known.lengths, known.plugin or [])
    print(json.dumps(result.plain(), indent=1) if known.json else table(result))
    if stopped is not None:
        raise Stopped(stopped, f"stopped by {stopped.name}; what was done before is written, and says so")


def _compare(known: argparse.Namespace) -> None:
    if known.cell is not None:
        from zoo.verbs.cell import cell

        cell(known.cell, known.tied)
        return
    from zoo.compare.table import table
    from zoo.verbs.compare import compare, rebuild

    if known.source is not None:
        comparison, unfinished = rebuild(known.source, [known.recipe, *known.overrides] if known.recipe else []), None
    else:
        comparison, unfinished = compare(known.recipe, known.overrides, known.plugin or [])
    print(json.dumps(comparison.plain(), indent=1) if known.json else table(comparison))
    if unfinished is not None:
        raise unfinished


def _launch(known: argparse.Namespace) -> None:
    from zoo.verbs.launch import launch

    launch(known.engine, known.recipe, known.overrides, known.plugin or [], known.print)


def _convert(known: argparse.Namespace) -> None:
    from zoo.verbs.convert import convert

    result = convert(known.file, known.recipe, known.overrides, known.to)
    print(json.dumps(result, indent=2) if known.json else "{checkpoint}: {weights} weights".format(**result))


def _check(known: argparse.Namespace) -> None:
    from zoo.verbs.certified import shown
    from zoo.verbs.conform import conform, judge, written

    done = conform(known.overrides, known.plugin or [])
    print(
        written({"certificates": [one.plain() for one in done.certificates]})
        if known.json
        else shown(done.certificates)
    )
    judge(done)


def _list(known: argparse.Namespace) -> None:
    from zoo.verbs.list import listing

    if known.kind not in (None, *KINDS):
        remedy = registry.nearest(known.kind, KINDS)
        raise RecipeError(Fault("command line", known.kind, "there is no such kind to list", remedy))
    print(listing([known.kind] if known.kind else KINDS))


def _show(known: argparse.Namespace) -> None:
    from zoo.verbs.show import show

    print(show(known.what, known.overrides))


def _diff(known: argparse.Namespace) -> None:
    from zoo.verbs.diff import diff, table

    result = diff(known.one, known.other, known.overrides)
    print(json.dumps(result, indent=2) if known.json else table(result))


def entry() -> NoReturn:
    """The `zoo` command."""
    sys.exit(main())
