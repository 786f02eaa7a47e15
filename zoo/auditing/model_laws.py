"""Laws about a model of transformers: its backends, windows, training, files and precision."""

from __future__ import annotations

import copy
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils import logging

from zoo.auditing.comparisons import (
    LENGTH,
    NARROW,
    ModelComparison,
    Scene,
    compare_packing,
    compare_padding,
    make_positions,
    narrow_windows,
    pass_whole,
    see_earlier,
)
from zoo.auditing.model_subjects import replace_model
from zoo.auditing.score_calls import find_scoring
from zoo.auditing.subject import (
    AuditSubject,
    NotAskedError,
    leaf_embeddings,
    measure_error,
    without_dropout,
)
from zoo.integrations.attention_windows import is_windowed_kind, read_window

WIDEST = 256  # tokens of a window that is measured first
LARGEST_WINDOW = 4096  # tokens of a window that is measured where a copy breaks the law
TEXTS = 3  # texts by which windows are measured
INFLUENCE = 1e-30  # relative gradient by which a token sees another one; hidden ones have 0


@contextmanager
def using_backend(model: Any, name: str) -> Iterator[None]:
    """Use an attention implementation for a while.

    Raises:
        NotAskedError: The model does not have it.
    """
    original = model.config._attn_implementation
    try:
        model.set_attn_implementation(name)
    except (ValueError, ImportError, AttributeError) as error:
        raise NotAskedError(f"the model has no attention implementation {name}") from error
    try:
        yield
    finally:
        model.set_attn_implementation(original)


def compare_backends(subject: AuditSubject) -> Iterator[ModelComparison]:
    """Compare the implementations eager and sdpa on tokens that are no padding."""
    model = subject.model
    if model is None:
        raise NotAskedError("functions have no attention implementations")
    if not (getattr(model, "_supports_sdpa", False)):
        raise NotAskedError("the model has the implementation eager only")
    ids = subject.draw_ids(2, LENGTH)

    def compute(name: str, logits: Callable[[AuditSubject], Tensor]) -> Any:
        def compute_with(subject: AuditSubject) -> Tensor:
            with using_backend(subject.model, name):
                return logits(subject)

        return compute_with

    ways: list[tuple[str, Callable[[AuditSubject], Tensor], slice, slice, Scene | None]] = [
        (
            "one pass",
            lambda subject: subject.logits(ids),
            slice(None),
            slice(None),
            Scene(ids, make_positions(ids), see_earlier(ids)),
        )
    ]
    for others in (
        compare_padding(subject, left=True),
        compare_padding(subject, left=False),
        compare_packing(subject),
    ):
        try:
            ways += [(one.way, one.tested, one.rows, one.tokens, one.scene) for one in others]
        except NotAskedError:
            continue
    for way, logits, rows, tokens, scene in ways:
        yield ModelComparison(
            f"eager and sdpa: {way}",
            _select(compute("eager", logits), rows, tokens),
            compute("sdpa", logits),
            rows=rows,
            tokens=tokens,
            scene=scene,
        )


def _select(
    compute: Callable[[AuditSubject], Tensor], rows: slice, tokens: slice
) -> Callable[[AuditSubject], Tensor]:
    return lambda subject: compute(subject)[rows, tokens]


def find_attentions(subject: AuditSubject) -> list[nn.Module]:
    """Return the modules that compute scores of attention, in order."""
    return find_scoring(subject.model, lambda: subject.logits(subject.draw_ids(1, 4)))


def find_windows(subject: AuditSubject) -> dict[str, int | None]:
    """Return the configured window of each attention; None for a layer that sees all tokens.

    Raises:
        NotAskedError: The configuration names no window.
    """
    if subject.model is None:
        raise NotAskedError("functions have no configured windows")
    config = subject.model.config.get_text_config()
    window = read_window(config)
    if window is None:
        raise NotAskedError("the configuration names no window")
    names = {module: path for path, module in subject.model.named_modules()}
    attentions = find_attentions(subject)
    if not attentions:
        raise NotAskedError("no module of the model computes scores of attention")
    types = getattr(config, "layer_types", None) or getattr(config, "attention_layers", None)
    windows: dict[str, int | None] = {}
    for number, module in enumerate(attentions):
        layer = getattr(module, "layer_idx", number)
        is_windowed = True
        if types and isinstance(layer, int) and layer < len(types):
            is_windowed = is_windowed_kind(types[layer])
        windows[names[module]] = window if is_windowed else None
    return windows


def is_states(value: Any) -> bool:
    """Return whether a value is states [B, N, D]."""
    return isinstance(value, Tensor) and value.dim() == 3 and value.is_floating_point()


def _swap(old: Tensor, new: Tensor, value: Any) -> Any:
    return new if value is old else value


def measure_influence(
    subject: AuditSubject, ids: Tensor, parts: tuple[int, ...], tokens: list[int]
) -> dict[str, Tensor]:
    """Return which tokens [tokens, N] each attention's output depends on, by gradients.

    Args:
        subject: A subject with a model.
        ids: Token ids [B, N]; a token is seen that is seen in one of the texts.
        parts: Numbers of tokens of the calls; one call needs no cache.
        tokens: The tokens whose outputs are asked.
    """
    model = subject.model
    names = {module: path for path, module in model.named_modules()}
    inputs: dict[str, list[Tensor]] = {}
    outputs: dict[str, list[Tensor]] = {}

    def enter(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        path = names[module]
        states = next(one for one in (*args, *kwargs.values()) if is_states(one))
        leaf = states.detach().requires_grad_(True)
        inputs.setdefault(path, []).append(leaf)
        swap = partial(_swap, states, leaf)
        return tuple(map(swap, args)), {name: swap(one) for name, one in kwargs.items()}

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        states = output if isinstance(output, Tensor) else output[0]
        outputs.setdefault(names[module], []).append(states)

    with ExitStack() as stack:
        for module in find_attentions(subject):
            handle = module.register_forward_pre_hook(enter, with_kwargs=True)
            stack.callback(handle.remove)
            stack.callback(module.register_forward_hook(leave).remove)
        with torch.enable_grad():
            if len(parts) == 1:
                subject.logits(ids)
            else:
                assert subject.cached is not None
                cache, start = None, 0
                for count in parts:
                    _, cache = subject.cached(ids[:, start : start + count], cache)
                    start += count
            influences = {}
            for path, states in outputs.items():
                joined = torch.cat(states, 1)
                weights = torch.linspace(0.5, 1.5, joined.shape[-1]).to(joined)
                rows = []
                for token in tokens:
                    gradients = torch.autograd.grad(
                        (joined[:, token] * weights).sum(),
                        inputs[path],
                        retain_graph=True,
                        allow_unused=True,
                    )
                    parts_of_row = [
                        torch.zeros(one.shape[1])
                        if gradient is None
                        else gradient.abs().amax((0, -1))
                        for one, gradient in zip(inputs[path], gradients, strict=True)
                    ]
                    rows.append(torch.cat([part.float().cpu() for part in parts_of_row]))
                influence = torch.stack(rows)
                influences[path] = influence > INFLUENCE * influence.amax(-1, keepdim=True)
    return influences


def check_windows(subject: AuditSubject, notes: list[str]) -> tuple[str, int, str, str] | None:
    """Compare what each layer sees with the configured windows.

    A window wider than `WIDEST` is asked in a copy with a window of `NARROW` tokens, and if that
    copy breaks the law, in the model itself.

    Args:
        subject: A subject with a model.
        notes: Receives what was asked in a copy.

    Returns:
        The layer, the first position, a sentence and an explanation; None if all windows are kept.

    Raises:
        NotAskedError: There is no window, or it is too wide.
    """
    window = next((one for one in find_windows(subject).values() if one is not None), None)
    if window is None:
        raise NotAskedError("no layer has a window")
    if not subject.is_causal:
        raise NotAskedError("windows of encoders reach to both sides, which is not asked")
    if window <= WIDEST:
        return measure_windows(subject)
    fault = measure_windows(narrow_windows(subject))
    if fault is None:
        notes.append(f"window: asked in a copy with {NARROW} tokens in place of {window:,}")
        return None
    if window > LARGEST_WINDOW:
        problem = f"the window of {window:,} tokens is wider than {LARGEST_WINDOW:,}"
        raise NotAskedError(f"{problem}, and in a copy with {NARROW} tokens, {fault[2]}")
    return measure_windows(subject)


def measure_windows(subject: AuditSubject) -> tuple[str, int, str, str] | None:
    """Compare what each layer sees with the configured windows, in one pass and with a cache.

    Returns:
        The layer, the first position, a sentence and an explanation; None if all windows are kept.

    Raises:
        NotAskedError: There is no window.
    """
    windows = find_windows(subject)
    window = next((one for one in windows.values() if one is not None), None)
    if window is None:
        raise NotAskedError("no layer has a window")
    count = max(2 * window + 8, LENGTH) if window <= WIDEST else window + 12
    # Where scores are far apart, weights of tokens in the window may vanish in one text.
    ids = subject.draw_ids(TEXTS, count)
    first = window + 3
    tokens = [window - 1, window, first + 1, first + 3, count - 1]
    ways: list[tuple[str, tuple[int, ...]]] = [("", (count,))]
    if subject.cached is not None:
        ways.append((" with a cache", (first, 5, 1, count - first - 6)))
    for way, parts in ways:
        influences = measure_influence(subject, ids, parts, tokens)
        for path, seen in influences.items():
            limit = windows[path]
            for token, row in zip(tokens, seen, strict=True):
                first_visible = 0 if limit is None else max(0, token - limit + 1)
                places = row.nonzero().flatten().tolist()
                # Weights between the ends may vanish; a window shows in its ends.
                if places and (places[0], places[-1]) == (first_visible, token):
                    continue
                width = token - int(row.nonzero()[0]) + 1 if bool(row.any()) else 0
                configured = "all earlier ones" if limit is None else f"the window of {limit:,}"
                cause = (
                    f"token {token} sees {width:,} tokens{way}, where it should see {configured}"
                )
                later = bool(row[token + 1 :].any())
                if later:
                    cause = f"token {token} sees later ones{way}"
                explanation = "window_in_cache" if way else "window"
                if later:
                    explanation = "mask_in_cache" if way else "mask_causal"
                return path, token, cause, explanation
            if hidden := list_hidden_offsets(tokens, seen, limit):
                cause = f"no token sees the one {hidden[0]} before it{way}, inside its window"
                return path, hidden[0], cause, "window_in_cache" if way else "window"
    return None


def list_hidden_offsets(tokens: Sequence[int], seen: Tensor, window: int | None) -> list[int]:
    """Return offsets inside the window at which no token sees another one.

    A single weight may vanish because of its content; one that is hidden vanishes for all tokens.

    Args:
        tokens: The tokens whose outputs were asked.
        seen: What each of them sees, bool [len(tokens), N].
        window: Number of tokens of the window; None: all earlier ones.
    """
    reach = min(tokens) + 1 if window is None else min(window, min(tokens) + 1)
    return [
        offset
        for offset in range(1, reach)
        if not any(row[token - offset] for token, row in zip(tokens, seen, strict=True))
    ]


def compute_gradients(
    subject: AuditSubject, compute: Callable[[AuditSubject], Tensor]
) -> dict[str, Tensor]:
    """Return gradients of the parameters for a weighted sum of logits that a function computes."""
    model = subject.model
    parameters = dict(model.named_parameters())
    states = [parameter.requires_grad for parameter in parameters.values()]
    with torch.enable_grad():
        model.requires_grad_(True)
        try:
            logits = compute(subject)
            weights = torch.linspace(-1, 1, logits.numel()).reshape(logits.shape).to(logits)
            gradients = torch.autograd.grad(
                (logits * weights.sin()).sum(), list(parameters.values()), allow_unused=True
            )
        finally:
            for parameter, state in zip(parameters.values(), states, strict=True):
                parameter.requires_grad_(state)
    return {
        name: gradient
        for name, gradient in zip(parameters, gradients, strict=True)
        if gradient is not None
    }


def check_checkpointing(subject: AuditSubject, bound: float) -> tuple[float, str | None]:
    """Return the largest difference of gradients by gradient checkpointing, and the parameter.

    Raises:
        NotAskedError: The model has no gradient checkpointing, or is random in training.
    """
    model = subject.model
    if model is None or not getattr(model, "supports_gradient_checkpointing", False):
        raise NotAskedError("the model has no gradient checkpointing")
    compute = pass_whole(subject.draw_ids(2, LENGTH))
    kind = "activation" if hasattr(model, "activation_checkpointing_enable") else "gradient"
    with without_dropout(model):
        plain = compute_gradients(subject, compute)
        again = compute_gradients(subject, compute)
        noise = _compare_gradients(plain, again)[0]
        if noise > bound:
            raise NotAskedError("gradients of the model are random")
        was_on = any(getattr(module, "gradient_checkpointing", False) for module in model.modules())
        # The former names of these methods are deprecated.
        getattr(model, f"{kind}_checkpointing_enable")({"use_reentrant": False})
        try:
            checkpointed = compute_gradients(subject, compute)
        finally:
            if not was_on:
                getattr(model, f"{kind}_checkpointing_disable")()
    error, _ = _compare_gradients(plain, checkpointed)
    return error, find_last_difference(plain, checkpointed, bound)


def _compare_gradients(
    first: dict[str, Tensor], second: dict[str, Tensor]
) -> tuple[float, str | None]:
    """Return the largest relative difference of gradients, and the parameter."""
    scale = max(float(one.abs().max()) for one in first.values())
    worst: tuple[float, str | None] = (0.0, None)
    for name, gradient in first.items():
        other = second.get(name)
        if other is None:
            return 1.0, name
        error = float((gradient - other).abs().max()) / max(scale, 1e-30)
        worst = max(worst, (error, name), key=lambda pair: pair[0])
    return worst


def find_last_difference(
    first: dict[str, Tensor], second: dict[str, Tensor], bound: float
) -> str | None:
    """Return the last parameter whose gradients differ: gradients are computed from the end."""
    scale = max(float(one.abs().max()) for one in first.values())
    names = [
        name
        for name, gradient in first.items()
        if name not in second or float((gradient - second[name]).abs().max()) > bound * scale
    ]
    return names[-1] if names else None


def check_packed_gradients(subject: AuditSubject, way: str) -> float:
    """Return the gradient of a packed text to the embeddings of the other one, in training mode.

    Args:
        subject: A subject with a model.
        way: A way of packing that keeps the values.
    """
    comparison = next(one for one in compare_packing(subject) if one.way == way)
    first = comparison.tokens.start
    with without_dropout(subject.model), torch.enable_grad(), leaf_embeddings(subject) as states:
        logits = comparison.tested(subject)[:, first:]
        (gradient,) = torch.autograd.grad(logits.float().square().sum(), states[:1])
    size = gradient.abs().max().clamp(min=1e-30)
    return float(gradient[:, :first].abs().max() / size)


def compare_packed_gradients(
    subject: AuditSubject, way: str, bound: float
) -> tuple[float, str | None]:
    """Return the largest difference of parameters' gradients for a document packed and alone.

    Args:
        subject: A subject with a model.
        way: A way of packing that keeps the values.
        bound: The largest difference that rounding explains.
    """
    comparison = next(one for one in compare_packing(subject) if one.way == way)
    with without_dropout(subject.model):
        alone = compute_gradients(
            subject, lambda subject: comparison.select_reference(comparison.reference(subject))
        )
        packed = compute_gradients(
            subject, lambda subject: comparison.select(comparison.tested(subject))
        )
    return _compare_gradients(alone, packed)[0], find_last_difference(alone, packed, bound)


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Turn the progress bars of transformers off for a while."""
    was_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            logging.enable_progress_bar()


def compute_saved(subject: AuditSubject, ids: Tensor) -> tuple[Tensor, Any]:
    """Return logits of the model after it was saved and loaded, and the loaded model."""
    model = subject.model
    kind: Any = type(model)
    with tempfile.TemporaryDirectory() as folder, without_progress_bars():
        model.save_pretrained(folder)
        loaded = kind.from_pretrained(
            folder,
            dtype=next(model.parameters()).dtype,
            attn_implementation=model.config._attn_implementation,
            local_files_only=True,
        )
    loaded = loaded.to(next(model.parameters()).device).eval()
    with torch.no_grad():
        return replace_model(subject, loaded).logits(ids), loaded


def find_lost_entry(subject: AuditSubject, loaded: Any, ids: Tensor, bound: float) -> str | None:
    """Return the entry of the configuration that a loaded model lacks, if it gives the numbers.

    Args:
        subject: The subject before it was saved.
        loaded: The loaded model, which computes something else.
        ids: Token ids [B, N].
        bound: The largest error that rounding explains.
    """
    model = subject.model
    logits = subject.logits(ids)
    for name, value in vars(model.config).items():
        if name.startswith("_") or vars(loaded.config).get(name) == value:
            continue
        config = copy.deepcopy(loaded.config)
        setattr(config, name, copy.deepcopy(value))
        with torch.random.fork_rng(devices=()):
            restored = type(model)(config)
        restored.load_state_dict(loaded.state_dict())
        restored = restored.to(next(model.parameters())).eval()
        with torch.no_grad():
            if measure_error(replace_model(subject, restored).logits(ids), logits) <= bound:
                return name
    return None


def compare_reference(subject: AuditSubject, twin: AuditSubject) -> Iterator[ModelComparison]:
    """Compare a model with the installed class."""
    ids = subject.draw_ids(1, 2 * LENGTH)
    yield ModelComparison(
        "the installed class with the same weights",
        lambda _: twin.logits(ids),
        lambda subject: subject.logits(ids),
        scene=Scene(ids, make_positions(ids), see_earlier(ids)),
    )


def measure_half_precision(subject: AuditSubject) -> tuple[float, float, int]:
    """Return the error of a bfloat16 copy near position 0 and far from it, and that position.

    It is the median over tokens, since the choice of another expert changes single ones.

    Raises:
        NotAskedError: There are no far positions, or they are not relative.
    """
    subject.require("positions")
    model = subject.model
    if model is None:
        raise NotAskedError("functions have no other precision")
    far = min(subject.length or 2**14, 2**14) - LENGTH
    if far < 2**8:
        raise NotAskedError(f"the model has {subject.length} positions only")
    half = copy.deepcopy(model)
    for parameter in half.parameters():
        # Loading with dtype= leaves the tables of angles in float32.
        parameter.data = parameter.data.to(torch.bfloat16)
    ids = subject.draw_ids(1, LENGTH)
    low = replace_model(subject, half)
    errors = []
    for start in (0, far):
        positions = make_positions(ids, start)
        logits = subject.logits(ids, positions=positions)
        rounded = low.logits(ids, positions=positions)
        errors.append(
            statistics.median(
                measure_error(rounded[:, token], logits[:, token]) for token in range(LENGTH)
            )
        )
    return errors[0], errors[1], far


def check_long(subject: AuditSubject) -> tuple[float, int]:
    """Return 1 if logits past the trained length are not finite, else 0, and the position.

    Raises:
        NotAskedError: The model has no positions past that length.
    """
    subject.require("positions")
    length = subject.length or 2**14
    ids = subject.draw_ids(1, LENGTH)
    start = 2 * length
    try:
        logits = subject.logits(ids, positions=make_positions(ids, start))
    except (IndexError, RuntimeError, ValueError) as error:
        raise NotAskedError(f"the model has no positions past {length:,}") from error
    return (0.0 if bool(torch.isfinite(logits).all()) else 1.0), start
