"""The subject of an audit for a model, of transformers, zoo or timm."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from zoo.auditing.image_subjects import is_image_model, make_image_subject
from zoo.auditing.subject import REFUSALS, AuditSubject, NotAskedError, is_unknown, measure_error
from zoo.auditing.zoo_subjects import find_language_model, make_language_subject
from zoo.errors import OptionError, escape_text

CACHES = ("cache", "past_key_values", "cache_params", "mems", "state")
"""Names under which models of transformers return what a continuation reads."""


def make_subject(model: nn.Module) -> AuditSubject:
    """Return the subject for a model of transformers, of zoo or of timm.

    Args:
        model: A decoder or an encoder with logits or hidden states as output, a task of zoo
            with one, or a vision transformer of timm.

    Raises:
        OptionError: It reads no token ids, or needs more than those.
    """
    language_model = find_language_model(model)
    if language_model is not None:
        return make_language_subject(language_model)
    if is_image_model(model):
        return make_image_subject(model)
    remedy = "pass zoo.AuditSubject(logits=..., cached=...) with functions of token ids"
    if getattr(model, "main_input_name", None) != "input_ids":
        problem = f"{type(model).__name__} is no model of transformers that reads token ids"
        raise OptionError("model", f"{problem}; {remedy}")
    try:
        subject = make_transformers_subject(model)
        options = find_options(subject)
    except (*REFUSALS, NotAskedError) as error:
        lines = str(error).strip().splitlines()
        reason = lines[0][:160] if lines else type(error).__name__
        problem = f"{type(model).__name__} computes no logits from token ids alone: {reason}"
        raise OptionError("model", escape_text(f"{problem}; {remedy}")) from None
    if subject.has_unknown_class and "attention_mask" in read_parameters(model):
        # An unknown class that names a mask promises to follow it.
        options |= {"attention_mask"}
    return replace(subject, options=options)


def replace_model(subject: AuditSubject, model: nn.Module) -> AuditSubject:
    """Return the same subject with another model of transformers, such as a copy in float64."""
    return replace(
        make_transformers_subject(model), options=subject.options, is_causal=subject.is_causal
    )


def read_parameters(model: nn.Module) -> set[str]:
    """Return the names of the parameters of a model's forward and those of its bases.

    A wrapper in a subclass may hand on keywords without naming them.
    """
    return {
        name
        for cls in type(model).__mro__
        if "forward" in vars(cls)
        for name in inspect.signature(vars(cls)["forward"]).parameters
    }


def make_transformers_subject(model: Any) -> AuditSubject:
    """Return the subject for a model of transformers, with all options."""
    config = model.config.get_text_config()
    parameters = read_parameters(model)

    def call(ids: Tensor, options: dict[str, Any]) -> Any:
        arguments = {"input_ids": ids}
        if "positions" in options:
            arguments["position_ids"] = options["positions"]
        if "attention_mask" in options:
            arguments["attention_mask"] = options["attention_mask"]
        return model(**arguments, **options.get("further", {}))

    def compute_logits(ids: Tensor, **options: Tensor) -> Tensor:
        further = {"use_cache": False} if "use_cache" in parameters else {}
        return read_logits(call(ids, {**options, "further": further}))

    def compute_cached(ids: Tensor, cache: Any = None, **options: Tensor) -> tuple[Tensor, Any]:
        further = {"use_cache": True}
        if cache is not None:
            name, value = cache
            further[name] = value
        output = call(ids, {**options, "further": further})
        taken = [name for name in CACHES if name in parameters]
        if isinstance(output, tuple):
            name = taken[0] if taken else None
            state = output[1] if len(output) > 1 else None
        else:
            name = next((key for key in CACHES if key in output.keys()), None)  # noqa: SIM118
            state = None if name is None else output[name]
            if name not in taken and taken:
                # The output may have the present name, and the class take the former one: another
                # name would vanish in its **kwargs.
                name = taken[0]
        if name is None or state is None:
            raise NotAskedError("the model returns no cache")
        return read_logits(output), (name, state)

    # The tokens of an encoder that a decoder follows see all others, though it generates; XLM and
    # FlauBERT say by an entry whether they are causal.
    reads_both_ways = (
        bool(getattr(config, "is_encoder_decoder", False))
        or getattr(config, "causal", None) is False
    )
    is_causal = not reads_both_ways and (
        bool(model.can_generate())
        or bool(getattr(config, "is_decoder", False))
        # A cache holds what earlier tokens computed, so that later ones cannot have changed it.
        or (is_unknown(model) and any(name in parameters for name in CACHES))
    )
    length = getattr(config, "max_position_embeddings", None)
    return AuditSubject(
        logits=compute_logits,
        cached=compute_cached if "use_cache" in parameters and is_causal else None,
        vocab_size=min(config.vocab_size, 2**15),
        length=length if isinstance(length, int) and length > 0 else None,
        is_causal=is_causal,
        name=type(model).__name__,
        model=model,
        options=frozenset({"positions", "attention_mask"}),
    )


def read_logits(output: Any) -> Tensor:
    """Return logits [B, N, V], or last hidden states, of an output of transformers."""
    if isinstance(output, Tensor) and output.dim() == 3:
        return output
    if isinstance(output, tuple):
        return read_logits(output[0]) if output else read_logits({})
    for key in ("logits", "last_hidden_state"):
        value = output.get(key)
        if isinstance(value, Tensor) and value.dim() == 3:
            return value
    raise NotAskedError("the model returns no logits of tokens")


def find_options(subject: AuditSubject) -> frozenset[str]:
    """Find the keywords that change what a model computes; others may vanish in its **kwargs."""
    ids = subject.draw_ids(1, 12)
    count = ids.shape[1]
    positions = torch.arange(count, device=ids.device)[None]
    ones = torch.ones_like(ids)
    half = ones.clone()
    half[:, : count // 2] = 0
    accepted = set()
    with torch.no_grad():
        base = subject.logits(ids)
        for option, given in (
            # A gap is read as a new text unless there is a mask.
            ("positions", {"positions": 2 * positions, "attention_mask": ones}),
            ("positions", {"positions": 2 * positions}),
            ("positions", {"positions": 2 * positions + 1, "attention_mask": ones}),
            ("positions", {"positions": 2 * positions + 1}),
            ("attention_mask", {"attention_mask": half}),
        ):
            try:
                output = subject.logits(ids, **given)
            except REFUSALS:
                continue
            if measure_error(output[:, count // 2 :], base[:, count // 2 :]) > 1e-6:
                accepted.add(option)
    return frozenset(accepted)
