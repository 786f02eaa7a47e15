"""Explanations of broken laws: a cause is claimed if planting it in a sound copy gives the numbers.

What a pass computes follows from the positions of its tokens and from whom each of them sees. So a
wrong position or mask is planted by passing both to a sound model in one pass without a cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from zoo.auditing.comparisons import (
    ModelComparison,
    Scene,
    make_float_mask,
    make_masks,
    see_earlier,
)
from zoo.auditing.model_laws import find_attentions, measure_influence, using_backend
from zoo.auditing.score_calls import ScoreCall, record_scores
from zoo.auditing.subject import (
    REFUSALS,
    AuditSubject,
    NotAskedError,
    leaf_embeddings,
    measure_error,
)
from zoo.integrations.attention_windows import read_window


@dataclass(frozen=True)
class Plant:
    """A fault that can be planted in one pass of a sound model.

    Attributes:
        explanation: A key of `EXPLANATIONS`.
        cause: A sentence.
        scene: Positions and visible tokens with the fault.
        narrow: Visible tokens [B, N, N] of layers with a window; by default those of the scene
            within the window.
    """

    explanation: str
    cause: str
    scene: Scene
    narrow: Tensor | None = None


def list_plants(law: str, scene: Scene, window: int | None) -> Iterator[Plant]:
    """Yield the faults that may explain a broken law.

    Args:
        law: The name of the law.
        scene: What the pass should compute.
        window: The window of the model, if it has one.
    """
    causal = see_earlier(scene.ids)
    everything = torch.ones_like(causal)

    def moved(explanation: str, cause: str, positions: Tensor) -> Plant:
        return Plant(explanation, cause, replace(scene, positions=positions))

    def seen(explanation: str, cause: str, visible: Tensor) -> Plant:
        return Plant(explanation, cause, replace(scene, visible=visible))

    if law == "future":
        yield seen(
            "mask_causal", "every token sees all others: there is no causal mask", everything
        )
        yield seen("mask_causal", "a token sees the next one", everything.tril(1))
    if scene.padding is not None:
        runs_on = torch.arange(scene.ids.shape[1], device=scene.ids.device)
        cause = "padding counts in the positions of the tokens after it"
        yield moved("positions_of_padding", cause, runs_on.expand_as(scene.ids))
        yield seen("mask_of_padding", "tokens see padding: the mask is ignored", causal)
        cause = "padding is seen, and counts in positions: the mask is ignored"
        plant = seen("mask_of_padding", cause, causal)
        yield replace(plant, scene=replace(plant.scene, positions=runs_on.expand_as(scene.ids)))
        yield seen("mask_of_padding", "tokens see padding and later tokens", everything)
    if len(scene.ids) > 1:
        first = scene.positions[:1].expand_as(scene.positions)
        yield moved("positions_of_first_row", "all rows have the positions of the first row", first)
        last = scene.positions[-1:].expand_as(scene.positions)
        cause = "all rows have the positions of the last row"
        yield moved("positions_of_another_row", cause, last)
        for others in (scene.positions.flip(0), scene.positions.roll(1, 0)):
            cause = "rows have the positions of other rows"
            yield moved("positions_of_another_row", cause, others)
    if scene.documents is not None:
        cause = "texts of a row see each other: the mask does not follow restarting positions"
        yield seen("mask_of_documents", cause, causal)
        runs_on = torch.arange(scene.ids.shape[1], device=scene.ids.device).expand_as(scene.ids)
        cause = "positions run on from one text of a row to the next"
        yield moved("positions_of_documents", cause, runs_on)
        cause = "restarting positions are ignored: texts of a row are one text"
        plant = seen("positions_of_documents", cause, causal)
        yield replace(plant, scene=replace(plant.scene, positions=runs_on))
        same = scene.documents[:, :, None] == scene.documents[:, None]
        yield seen("mask_causal", "tokens see later ones of their text", same)
    if len(scene.parts) > 1:
        yield from _list_cache_plants(scene, window)
    if window is not None:
        for width, name in ((window + 1, "one more"), (window - 1, "one less")):
            cause = f"a layer sees {name} than the window of {window:,} tokens"
            yield Plant("window", cause, scene, scene.visible & everything.triu(1 - width))
        cause = f"a layer ignores its window of {window:,} tokens"
        yield Plant("window", cause, scene, scene.visible)


def _list_cache_plants(scene: Scene, window: int | None) -> Iterator[Plant]:
    """Yield faults of tokens that follow a cache."""
    sizes = torch.tensor(scene.parts)
    ends = sizes.cumsum(0).repeat_interleave(sizes)
    starts = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    number = torch.arange(len(sizes)).repeat_interleave(sizes)
    place = torch.arange(len(ends))
    later = starts > 0
    count = (ends - starts)[:, None]
    for cause, positions in (
        ("all have the first position of their call", starts),
        ("all have the last position of their call", ends - 1),
        ("have positions that restart at 0 in each call", place - starts),
        ("have positions that are one too large", place + 1),
        ("have positions that are one too small", (place - 1).clamp(min=0)),
        ("have one position more for each earlier call", place + number),
        ("have positions that begin at the size of the call", place + ends - 2 * starts),
        ("have positions that begin at the size of the first call", place - starts + sizes[0]),
    ):
        for which, calls in (
            ("tokens", later),
            ("several tokens", later & (ends - starts > 1)),
            ("single tokens", later & (ends - starts == 1)),
        ):
            moved = torch.where(calls, positions, place).expand_as(scene.ids)
            sentence = f"{which} that follow a cache {cause}"
            yield Plant("positions_in_cache", sentence, replace(scene, positions=moved))
    queries, keys = place[:, None], place
    begin, end = starts[:, None], ends[:, None]
    causal = keys <= queries
    sound = causal if window is None else causal & (keys > queries - window)
    # The cache of a layer with a window keeps the last keys only.
    stored = causal if window is None else keys > begin - window
    faults = [
        ("mask_in_cache", "the causal mask is aligned to the first key", keys <= queries - begin),
        ("mask_in_cache", "tokens see all tokens of their call", stored & (keys < end)),
        ("mask_in_cache", "a token does not see itself", sound & (keys < queries)),
        ("keys_in_cache", "tokens see nothing of the cache", sound & (keys >= begin)),
        ("keys_in_cache", "the last token of the cache is lost", sound & (keys != begin - 1)),
        ("keys_in_cache", "the first token of the cache is lost", sound & (keys > 0)),
    ]
    if window is not None:
        # Aligned to the first key that the cache kept.
        kept = (begin - window + 1).clamp(min=0)
        aligned = (keys >= kept) & (keys - kept <= queries - begin)
        faults += [
            ("mask_in_cache", "the causal mask is aligned to the first key", aligned),
            ("window_in_cache", f"the window of {window:,} tokens is not applied", causal),
            ("window_in_cache", f"the window of {window:,} tokens is not applied", causal & stored),
            (
                "window_in_cache",
                "the window has one token less",
                sound & (keys > queries - window + 1),
            ),
            (
                "window_in_cache",
                "the window has one token more",
                causal & (keys >= queries - window),
            ),
        ]
    for where, calls in (
        ("after a cache", begin > 0),
        ("in a call of several tokens after a cache", (begin > 0) & (count > 1)),
        ("in a call of one token after a cache", (begin > 0) & (count == 1)),
    ):
        for explanation, cause, visible in faults:
            shown = torch.where(calls, visible, sound).expand_as(scene.visible)
            is_windowed = explanation == "window_in_cache"
            scenes = scene if is_windowed else replace(scene, visible=shown)
            yield Plant(explanation, f"{where}, {cause}", scenes, None if window is None else shown)


def emulate(
    subject: AuditSubject,
    scene: Scene,
    narrow: Tensor | None = None,
    sound: Scene | None = None,
    layers: list[nn.Module] | None = None,
) -> Tensor:
    """Return logits of one pass with given positions and visible tokens.

    Args:
        subject: A sound model that follows position ids and masks of four axes.
        scene: Positions and visible tokens.
        narrow: Visible tokens of layers with a window.
        sound: What other layers than `layers` compute.
        layers: The attentions with the visible tokens of `scene`; by default all.
    """
    masks = make_masks(scene.visible, subject, narrow)
    options: dict[str, Any] = {"attention_mask": masks}
    if "positions" in subject.options:
        options["positions"] = scene.positions
    if layers is None or sound is None:
        return subject.logits(scene.ids, **options)
    options["attention_mask"] = make_masks(sound.visible, subject)
    planted = make_float_mask((scene.visible if narrow is None else narrow)[:, None], subject)

    def replace_mask(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        if "attention_mask" not in kwargs:
            raise NotAskedError("an attention receives no mask by name")
        return args, {**kwargs, "attention_mask": planted}

    with ExitStack() as stack:
        for module in layers:
            handle = module.register_forward_pre_hook(replace_mask, with_kwargs=True)
            stack.callback(handle.remove)
        return subject.logits(scene.ids, **options)


def emulate_rows(subject: AuditSubject, scene: Scene, narrow: Tensor | None = None) -> Tensor:
    """Return logits of one pass for each row, which faults between rows spare."""
    rows = []
    for row in range(len(scene.ids)):
        one = slice(row, row + 1)
        part = replace(
            scene, ids=scene.ids[one], positions=scene.positions[one], visible=scene.visible[one]
        )
        rows.append(emulate(subject, part, None if narrow is None else narrow[one]))
    return torch.cat(rows)


def find_ignored_positions(
    law: str, subject: AuditSubject, scene: Scene, reproduces: Callable[[Tensor], bool]
) -> tuple[str, str] | None:
    """Return the explanation if a pass without positions gives the numbers."""
    explanation = {"packing": "positions_of_documents", "left_padding": "positions_of_padding"}.get(
        law
    )
    if explanation is None:
        return None
    causal = see_earlier(scene.ids)
    masks: list[tuple[str, Tensor]] = [("", scene.visible), (", and so is the mask", causal)]
    for also, visible in masks:
        try:
            logits = subject.logits(scene.ids, attention_mask=make_masks(visible, subject))
        except (*REFUSALS, NotAskedError):
            continue
        if reproduces(logits):
            return explanation, f"the given positions are ignored{also}"
    return None


def find_explanation(
    law: str,
    subject: AuditSubject,
    sound: AuditSubject,
    comparison: ModelComparison,
    bound: float,
    module: str | None,
    *,
    may_ignore_positions: bool = False,
) -> tuple[str, str] | None:
    """Return the explanation and the sentence of the fault that reproduces the numbers.

    Args:
        law: The name of the broken law.
        subject: The subject that breaks it.
        sound: A sound copy, or the subject itself if it is sound in one pass.
        comparison: The passes that differ.
        bound: The largest error that rounding explains.
        module: Where they begin to differ.
        may_ignore_positions: Whether laws about masks and caches are kept, so that positions are
            what is left.
    """
    scene = comparison.scene
    if scene is None or "attention_mask" not in subject.options or subject.model is None:
        return None
    # All rows, since one row does not tell the positions of the first row from those of another.
    tokens = torch.ones_like(scene.ids, dtype=torch.bool)
    if scene.padding is not None:
        tokens = ~scene.padding
    broken = comparison.tested(subject)[tokens]

    def reproduces(logits: Tensor) -> bool:
        return measure_error(logits[tokens], broken) <= bound

    reference = comparison.select_reference(comparison.reference(sound))
    try:
        right = emulate_rows(sound, scene)
    except (*REFUSALS, NotAskedError):
        return None
    if measure_error(comparison.select(right), reference) > bound:
        # A copy that breaks the law in one pass, too, shows no cause by planting another one.
        if sound is not subject or not may_ignore_positions:
            return None
        # A model that ignores its positions computes the same without them.
        return find_ignored_positions(law, subject, scene, reproduces)
    if sound is not subject and reproduces(right):
        return None  # the other pass is the wrong one
    window = read_window(sound.model.config.get_text_config())
    names = dict(sound.model.named_modules())
    attentions = find_attentions(sound)
    place = names.get(module or "")
    choices: list[list[nn.Module] | None] = [None]
    if place in attentions:
        choices += [[place]]
    for plant in list_plants(law, scene, window):
        for layers in choices:
            if layers is not None and plant.scene.visible is scene.visible and plant.narrow is None:
                continue
            try:
                if sound is subject and layers is None:
                    logits = emulate_rows(sound, plant.scene, plant.narrow)
                else:
                    logits = emulate(sound, plant.scene, plant.narrow, scene, layers)
            except (*REFUSALS, NotAskedError):
                continue
            # A fault that changes nothing, as a window longer than the text, explains nothing.
            if reproduces(logits) and measure_error(logits[tokens], right[tokens]) > bound:
                return plant.explanation, plant.cause
    return None


def find_ignoring_backend(
    subject: AuditSubject, sound: AuditSubject, comparison: ModelComparison, bound: float
) -> tuple[str, str] | None:
    """Return the implementation that ignores the mask, if that reproduces the numbers."""
    scene = comparison.scene
    if scene is None or "attention_mask" not in subject.options:
        return None
    causal = see_earlier(scene.ids)
    outputs = {
        "eager": comparison.reference(subject),
        "sdpa": comparison.select(comparison.tested(subject)),
    }
    try:
        right = comparison.select(emulate(sound, scene))
    except (*REFUSALS, NotAskedError):
        return None
    outputs = {
        name: logits for name, logits in outputs.items() if measure_error(logits, right) > bound
    }
    for visible, name in ((causal, "all but the causal mask"), (torch.ones_like(causal), "masks")):
        try:
            planted = comparison.select(emulate(sound, replace(scene, visible=visible), visible))
        except (*REFUSALS, NotAskedError):
            continue
        for backend, logits in outputs.items():
            if measure_error(planted, logits) <= bound:
                return "mask_of_backend", f"the implementation {backend} ignores {name}"
    return None


def is_kept_by_another_backend(
    subject: AuditSubject, comparison: ModelComparison, bound: float
) -> bool:
    """Return whether a comparison agrees with the other attention implementation."""
    name = "eager" if subject.model.config._attn_implementation == "sdpa" else "sdpa"
    try:
        with using_backend(subject.model, name):
            reference = comparison.select_reference(comparison.reference(subject))
            error = measure_error(comparison.select(comparison.tested(subject)), reference)
    except (*REFUSALS, NotAskedError):
        return False
    return error <= bound


def do_rows_touch(subject: AuditSubject) -> bool:
    """Return whether a row's logits have a gradient to the embeddings of another row."""
    try:
        with torch.enable_grad(), leaf_embeddings(subject) as states:
            logits = subject.logits(subject.draw_ids(2, 12))
            (gradient,) = torch.autograd.grad(logits[0].float().square().sum(), states[:1])
    except (RuntimeError, NotAskedError):
        return False
    return bool(gradient[1].abs().max() > 1e-6 * gradient[0].abs().max())


def find_later_tokens(subject: AuditSubject, ids: Tensor) -> tuple[str, str, str] | None:
    """Return the first attention that sees later tokens, by gradients, and the explanation."""
    tokens = list(range(ids.shape[1] - 1))
    for path, seen in measure_influence(subject, ids, (ids.shape[1],), tokens).items():
        for token, row in zip(tokens, seen, strict=True):
            if bool(row[token + 1 :].any()):
                last = int(row.nonzero()[-1])
                return path, "mask_causal", f"token {token} sees later ones, up to token {last}"
    return None


def find_running_state(
    subject: AuditSubject, comparison: ModelComparison, bound: float, module: str
) -> str | None:
    """Return the class of a module, if its calls for each text of a row keep the law.

    Args:
        subject: The subject that breaks the law.
        comparison: A text alone, and packed behind another one.
        bound: The largest error that rounding explains.
        module: Where they begin to differ.
    """
    place = dict(subject.model.named_modules()).get(module)
    if place is None or comparison.scene is None:
        return None
    if not {*place.modules()}.isdisjoint(find_attentions(subject)):
        return None  # calls for each text would replace its mask, too
    count, first = comparison.scene.ids.shape[1], comparison.tokens.start

    def split(value: Any, part: slice) -> Any:
        if isinstance(value, tuple):
            return tuple(split(one, part) for one in value)
        if isinstance(value, Tensor):
            # A mask of four axes has tokens in two of them.
            for axis in range(1, value.dim()):
                if value.shape[axis] == count:
                    value = value[(slice(None),) * axis + (part,)]
        return value

    def join(first: Any, second: Any) -> Any:
        if isinstance(first, tuple):
            return tuple(join(*pair) for pair in zip(first, second, strict=True))
        return torch.cat([first, second], 1) if isinstance(first, Tensor) else first

    with ExitStack() as stack:
        for other in subject.model.modules():
            if type(other) is not type(place):
                continue

            def call(*args: Any, sound: Any = other.forward, **kwargs: Any) -> Any:
                outputs = [
                    sound(
                        *(split(one, part) for one in args),
                        **{name: split(one, part) for name, one in kwargs.items()},
                    )
                    for part in (slice(first), slice(first, None))
                ]
                return join(*outputs)

            stack.callback(vars(other).pop, "forward")
            vars(other)["forward"] = call
        tested = comparison.select(comparison.tested(subject))
    reference = comparison.select_reference(comparison.reference(subject))
    return type(place).__name__ if measure_error(tested, reference) <= bound else None


def find_other_keys(subject: AuditSubject, comparison: ModelComparison, bound: float) -> str | None:
    """Return the first attention whose keys after a cache are not those of one pass.

    Its queries must agree, so that what it received is not the cause.
    """

    def record(compute: Any) -> dict[nn.Module, list[ScoreCall]]:
        with record_scores(subject.model) as scores:
            compute(subject)
        calls: dict[nn.Module, list[ScoreCall]] = {}
        for call in scores:
            calls.setdefault(call.module, []).append(call)
        return calls

    whole, parts = record(comparison.reference), record(comparison.tested)
    names = {module: path for path, module in subject.model.named_modules()}
    for module, (one_pass, *_) in whole.items():
        start = 0
        for call in parts.get(module, []):
            stop = start + call.q.shape[2]
            if measure_error(call.q, one_pass.q[:, :, start:stop]) > bound:
                return None
            keys = one_pass.k[:, :, max(0, stop - call.k.shape[2]) : stop]
            if keys.shape == call.k.shape and measure_error(call.k, keys) > bound:
                return names[module]
            start = stop
    return None
