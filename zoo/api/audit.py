"""Audit models of other libraries from Python: `zoo.audit`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.api.guard import guard
from zoo.api.training import load
from zoo.config.arguments import validate_options
from zoo.errors import ARGUMENT, ConfigIssue, OptionError, RecipeError
from zoo.packages import explain_imports

if TYPE_CHECKING:
    from torch import Tensor

    from zoo.auditing.audit_report import AuditReport
    from zoo.auditing.model_folder import AuditOptions


@guard
def audit(
    subject: Any,
    *,
    laws: Sequence[str] | None = None,
    size: str | None = None,
    dtype: str | None = None,
    out: str | Path | None = None,
    model: str | None = None,
    reference: str | Path | None = None,
    timeout: float | None = None,
    verbose: bool | None = True,
) -> AuditReport:
    """Ask a model the laws of positions: whether padding, caches, packing and shifts change it.

    Args:
        subject: A decoder or encoder of transformers or of zoo, an `AuditSubject` with functions of
            token ids, a folder with a model of transformers, a run or a checkpoint of zoo, or the
            address of a server with a completions interface, as http://HOST/v1.
        laws: Names of laws, as docs/audit.md lists them; by default all.
        size: Of a folder, "small" for the same architecture with few layers and random weights.
            By default the weights are loaded, if there are any.
        dtype: Of a folder, "float32", "bfloat16" or "float16"; by default that of its weights.
        out: File for the report, which ends in .json, or in .html for a page.
        model: Of a server, the name of the model; by default the only one that it has.
        reference: Of a server, a folder of transformers with the weights that it should serve.
        timeout: Of a server, seconds to wait for an answer; by default 60.
        verbose: Print progress to standard error. None leaves logging to the caller.

    Returns:
        A result for each law. `is_sound` is true if none is broken.

    Raises:
        RecipeError: An argument is wrong.
        DataError: The server is not reached, or gives no log-probabilities.
        CheckpointError: The folder holds no model that loads.
    """
    from zoo.auditing.model_folder import (
        AuditOptions,
        check_folder,
        is_address,
        is_run,
        load_folder,
    )

    options = validate_options(
        AuditOptions,
        {
            "laws": laws,
            "size": size,
            "dtype": dtype,
            "out": out,
            "model": model,
            "reference": reference,
            "timeout": timeout,
        },
    )
    if is_run(subject):
        # The task of a checkpoint has zoo's own model.
        subject = load(subject)
    is_folder = isinstance(subject, str | os.PathLike) and not is_address(subject)
    _refuse_vain_options(options, is_folder=is_folder, is_server=is_address(subject))
    if is_folder:
        check_folder(subject)
    if options.reference is not None:
        check_folder(options.reference)
    if options.out is not None:
        with explain_imports():
            from zoo.auditing.audit_report import check_ending
    try:
        if options.out is not None:
            check_ending(options.out)
        if is_address(subject):
            report = _audit_address(subject, options)
        else:
            with explain_imports():
                from zoo.auditing.model_subjects import make_subject
                from zoo.auditing.run_laws import audit_subject, select_laws
                from zoo.auditing.subject import AuditSubject

            select_laws(options.laws)
            if is_folder:
                subject = load_folder(subject, options)
            if not isinstance(subject, AuditSubject):
                subject = make_subject(subject)
            report = audit_subject(subject, options.laws)
    except OptionError as error:
        raise RecipeError(ConfigIssue(ARGUMENT, error.key, error.message)) from None
    if options.out is not None:
        report.save(options.out)
    return report


def _refuse_vain_options(options: AuditOptions, *, is_folder: bool, is_server: bool) -> None:
    """Refuse options that have no effect on a subject.

    Raises:
        RecipeError: There are some.
    """
    vain = {
        "only a folder has a size and a dtype to choose": () if is_folder else ("size", "dtype"),
        "only a server has it": () if is_server else ("model", "reference", "timeout"),
    }
    issues = [
        ConfigIssue(ARGUMENT, key, message)
        for message, keys in vain.items()
        for key in keys
        if getattr(options, key) is not None
    ]
    if issues:
        raise RecipeError(*issues)


def _audit_address(url: str, options: AuditOptions) -> AuditReport:
    """Audit the server of an address."""
    with explain_imports():
        from zoo.auditing.completions import connect
        from zoo.auditing.model_folder import load_reference
        from zoo.auditing.server_laws import audit_server, select_server_laws

        select_server_laws(options.laws)
        server = connect(url, options.model, options.timeout or 60.0)
        reference = None if options.reference is None else load_reference(options.reference)
    return audit_server(server, reference, options.laws)


@guard
def audit_rotary(layer: Any, config: Any) -> AuditReport:
    """Compare a rotary layer with a configuration, at all positions up to the configured length.

    Args:
        layer: A module or a function of states and positions, or of positions, that returns cos and
            sin or complex numbers; or one of queries, keys and positions, with heads [B, H, N, K],
            that returns them turned.
        config: A configuration of transformers, or an object with its entries `rope_theta` or
            `rope_parameters`, `max_position_embeddings`, and `head_dim` or `hidden_size` and
            `num_attention_heads`.

    Returns:
        A report of the law `rotary`. A configuration names no layout of channels: it is a note.

    Raises:
        RecipeError: The layer answers no call with a rotation, or the configuration has no width.
    """
    with explain_imports():
        from zoo.auditing.loose_rotary import ask_rotary_layer
    return _report(layer, lambda: _gather(ask_rotary_layer(layer, config)))


@guard
def audit_batches(batches: Iterable[Any], documents: Sequence[Any]) -> AuditReport:
    """Ask what a collator or a packer made of documents the laws of batches.

    Args:
        batches: Batches, such as a loader: mappings with `input_ids` [B, N] and, if they have them,
            `labels`, `position_ids`, `attention_mask`, numbers of texts such as `seq_idx`, and
            cumulative lengths such as `cu_seq_lens_q`.
        documents: Token ids of the documents that the batches were made of.

    Returns:
        A report. Errors are numbers of tokens.

    Raises:
        RecipeError: A batch has no token ids, or there are none.
    """
    with explain_imports():
        from zoo.auditing.document_batches import ask_batches
    return _report(batches, lambda: (ask_batches(batches, documents), ()))


@guard
def audit_training(
    step: Callable[..., tuple[Any, Mapping[str, Tensor]]], documents: Sequence[Any]
) -> AuditReport:
    """Ask a training step whether packing, accumulation and checkpointing keep its gradients.

    Args:
        step: `step(documents)` returns the loss and {parameter: gradient} of documents that are
            computed one by one, without an update. Keywords ask for another way: `packed=True` for
            one row of all documents, `accumulation=2` for two parts of the batch, and
            `checkpointing=True`. A way whose keyword it lacks is not asked.
        documents: The documents, of different lengths, as the step takes them.

    Returns:
        A report. Errors are differences of gradients over the largest gradient.

    Raises:
        RecipeError: The step returns something else, or there are less than two documents.
    """
    with explain_imports():
        from zoo.auditing.training_steps import ask_training
    return _report(step, lambda: (ask_training(step, documents), ()))


def _gather(answer: tuple[Any, tuple[str, ...]]) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    return (answer[0],), answer[1]


def _report(subject: Any, ask: Callable[[], tuple[Any, tuple[str, ...]]]) -> AuditReport:
    """Return the report of laws about something else than a model."""
    from importlib.metadata import version

    from zoo.auditing.audit_report import AuditReport

    start = time.perf_counter()
    try:
        results, notes = ask()
    except OptionError as error:
        raise RecipeError(ConfigIssue(ARGUMENT, error.key, error.message)) from None
    name = getattr(subject, "__name__", None) or type(subject).__name__
    versions = {package: version(package) for package in ("torch", "transformers")}
    return AuditReport(results, notes, name, versions, time.perf_counter() - start)
