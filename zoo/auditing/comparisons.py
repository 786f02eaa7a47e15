"""Laws that compare logits of two ways to compute the same."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from zoo.auditing.model_subjects import CACHES, read_parameters, replace_model
from zoo.auditing.score_calls import find_scoring
from zoo.auditing.subject import AuditSubject, NotAskedError
from zoo.integrations.attention_windows import is_windowed_kind, narrowed, read_window
from zoo.integrations.rope_parameters import FIXED_LENGTH

LENGTH = 24  # tokens of a text
PADDING = 5  # tokens of padding
PARTS = (7, 8, 1, LENGTH - 16)
SINGLE = (5, *(1,) * (LENGTH - 5))
NARROW = 16  # tokens of a window in a copy
LONGEST = 4096  # tokens of an original length that is crossed
MASK = "a mask of four axes"
RESTARTS = "restarting positions"
Compute = Callable[[AuditSubject], Tensor]


@dataclass(frozen=True)
class Scene:
    """The tokens of a pass, their positions, and the tokens that they see.

    Attributes:
        ids: Token ids [B, N].
        positions: Positions [B, N].
        visible: Whether a token sees another one [B, N, N].
        parts: Numbers of tokens of the calls.
        documents: The number of each token's text [B, N].
        padding: Whether a token is padding [B, N].
    """

    ids: Tensor
    positions: Tensor
    visible: Tensor
    parts: tuple[int, ...] = ()
    documents: Tensor | None = None
    padding: Tensor | None = None


@dataclass(frozen=True)
class ModelComparison:
    """Two passes whose logits should agree.

    Attributes:
        way: How the second pass computes, for the report.
        reference: Computes logits [B, N, V] as they should be.
        tested: Computes them in the way that the law is about.
        rows: Rows of the tested pass that are compared.
        tokens: Tokens of the tested pass that are compared.
        reference_tokens: Tokens of the reference pass that are compared.
        scene: What the tested pass should compute.
        since: The first position of the compared tokens, where it matters.
        is_optional: Whether a class may refuse this way, which is noted.
    """

    way: str
    reference: Compute
    tested: Compute
    rows: slice = field(default_factory=lambda: slice(None))
    tokens: slice = field(default_factory=lambda: slice(None))
    reference_tokens: slice = field(default_factory=lambda: slice(None))
    scene: Scene | None = None
    since: int | None = None
    is_optional: bool = False

    def select(self, values: Tensor) -> Tensor:
        """Return the compared entries [B, N, D] of the tested pass."""
        return values[self.rows, self.tokens]

    def select_reference(self, values: Tensor) -> Tensor:
        """Return the compared entries [B, N, D] of the reference pass."""
        return values[:, self.reference_tokens]


def pass_whole(ids: Tensor, **options: Tensor) -> Compute:
    """Return what computes logits of token ids in one pass."""
    return lambda subject: subject.logits(ids, **options)


def make_positions(ids: Tensor, start: int = 0) -> Tensor:
    """Return positions [B, N] of texts that begin at a position."""
    return torch.arange(start, start + ids.shape[1], device=ids.device).expand(ids.shape)


def see_earlier(ids: Tensor) -> Tensor:
    """Return the causal pattern [B, N, N] of token ids [B, N]."""
    count = ids.shape[1]
    return (
        torch.ones(count, count, dtype=torch.bool, device=ids.device)
        .tril()
        .expand(len(ids), -1, -1)
    )


def describe_text(ids: Tensor, parts: tuple[int, ...] = ()) -> Scene:
    """Return the scene of causal texts from position 0."""
    return Scene(ids, make_positions(ids), see_earlier(ids), parts)


def compare_future(subject: AuditSubject) -> Iterator[ModelComparison]:
    """Compare logits before a changed token."""
    if not subject.is_causal:
        raise NotAskedError("every token of an encoder sees all others")
    ids = subject.draw_ids(1, LENGTH)
    for place in range(1, LENGTH):
        changed = ids.clone()
        changed[:, place] = _change(changed[:, place], subject)
        yield ModelComparison(
            f"token {place} is another one",
            pass_whole(ids),
            pass_whole(changed),
            tokens=slice(place),
            reference_tokens=slice(place),
            scene=describe_text(changed),
        )


def _change(ids: Tensor, subject: AuditSubject) -> Tensor:
    """Return other tokens."""
    highest = subject.vocab_size - 1
    return torch.where(ids == highest, highest - 1, highest)


def compare_batch(subject: AuditSubject) -> Iterator[ModelComparison]:
    """Compare rows alone and among others, in both orders, also at different positions."""
    ids = subject.draw_ids(4, LENGTH)
    for order in ((0, 1, 2, 3), (3, 2, 1, 0)):
        mixed = ids[list(order)]
        row = order.index(0)
        yield ModelComparison(
            f"row {row} of four",
            pass_whole(ids[:1]),
            pass_whole(mixed),
            rows=slice(row, row + 1),
            scene=describe_text(mixed),
        )
    if "positions" not in subject.options or not _has_room(subject, 2 * LENGTH + 3):
        return
    pair = ids[:2]
    # Positions with gaps: a shift alone is invisible where positions are relative.
    places = make_positions(ids[:1])
    first, gaps = 2 * places + 1, places + places // 4 + 3
    options = {}
    if "attention_mask" in subject.options:
        options["attention_mask"] = torch.ones_like(pair)  # else a gap may begin a new text
    for row in (1, 0):
        positions = torch.cat([first, gaps])
        positions = positions.flip(0) if row == 0 else positions
        yield ModelComparison(
            f"row {row} of two, at other positions than the other row",
            pass_whole(
                pair[row : row + 1],
                positions=gaps,
                **{name: values[:1] for name, values in options.items()},
            ),
            pass_whole(pair, positions=positions, **options),
            rows=slice(row, row + 1),
            scene=Scene(pair, positions, see_earlier(pair)),
        )


def _has_room(subject: AuditSubject, count: int) -> bool:
    return subject.length is None or count <= subject.length


def compute_parts(
    subject: AuditSubject, ids: Tensor, parts: tuple[int, ...], positions: Tensor | None = None
) -> Tensor:
    """Return logits of token ids that are passed in parts with a cache."""
    if subject.cached is None:
        raise NotAskedError("the model has no cache")
    outputs, cache, start = [], None, 0
    for count in parts:
        options = {}
        if positions is not None:
            options["positions"] = positions[:, start : start + count]
        logits, cache = subject.cached(ids[:, start : start + count], cache, **options)
        outputs.append(logits)
        start += count
    return torch.cat(outputs, 1)


def compare_cache(subject: AuditSubject) -> Iterator[ModelComparison]:
    """Compare one pass with parts of any size, and with a cropped cache."""
    if subject.cached is None:
        raise NotAskedError("the model has no cache")
    ids = subject.draw_ids(1, LENGTH)
    takes_positions = "positions" in subject.options
    for name, parts in (("parts of 7, 8, 1 and 8 tokens", PARTS), ("single tokens", SINGLE)):
        yield ModelComparison(
            name,
            pass_whole(ids),
            partial(compute_parts, ids=ids, parts=parts),
            scene=describe_text(ids, parts),
        )
    if takes_positions:
        yield ModelComparison(
            "parts with position ids",
            pass_whole(ids),
            lambda subject: compute_parts(subject, ids, PARTS, make_positions(ids)),
            scene=describe_text(ids, PARTS),
        )
    long = subject.draw_ids(2, 3 * LENGTH)
    if _has_room(subject, 3 * LENGTH):
        parts = (30, 9, 1, 1, 3 * LENGTH - 41)
        yield ModelComparison(
            "a longer text in parts",
            pass_whole(long),
            lambda subject: compute_parts(subject, long, parts),
            scene=describe_text(long, parts),
        )

    yield from _compare_caches(subject)


def _compare_caches(subject: AuditSubject) -> Iterator[ModelComparison]:
    """Compare one pass with a cropped cache, a static cache, and parts past the window."""
    model = subject.model
    if model is None:
        return
    ids, other = subject.draw_ids(2, LENGTH).split(1)
    kept = 11
    continued = torch.cat([ids[:, :kept], other[:, : LENGTH - kept]], 1)

    def crop(subject: AuditSubject) -> Tensor:
        """Return logits of a continuation of a cropped cache."""
        assert subject.cached is not None
        _, cache = subject.cached(ids, None)
        if not hasattr(cache[1], "crop"):
            raise NotAskedError("the cache has no crop")
        # The number of tokens to remove; some caches take no number of tokens to keep.
        cache[1].crop(kept - LENGTH)
        outputs = []
        for part in (continued[:, kept : kept + 4], continued[:, kept + 4 :]):
            logits, cache = subject.cached(part, cache)
            outputs.append(logits)
        return torch.cat(outputs, 1)

    if not subject.has_unknown_class:
        yield ModelComparison(
            "a cropped cache and a new continuation",
            pass_whole(continued),
            crop,
            reference_tokens=slice(kept, None),
            is_optional=True,
        )
    if getattr(model, "_can_compile_fullgraph", False):
        yield ModelComparison(
            "a static cache",
            pass_whole(ids),
            partial(_compute_static, ids=ids),
            scene=describe_text(ids, PARTS),
            is_optional=True,
        )
    window = read_window(model.config.get_text_config())
    if window is not None and window > LENGTH and _has_room(subject, 3 * NARROW):
        longer = subject.draw_ids(1, 3 * NARROW)
        parts = (NARROW - 3, 9, 1, 1, 2 * NARROW - 8)
        yield ModelComparison(
            f"past the window, in a copy with {NARROW} tokens",
            lambda subject: narrow_windows(subject).logits(longer),
            lambda subject: compute_parts(narrow_windows(subject), longer, parts),
            is_optional=True,
        )


def _compute_static(subject: AuditSubject, ids: Tensor) -> Tensor:
    """Return logits of parts with a static cache."""
    from transformers import StaticCache

    assert subject.cached is not None
    cache: Any = StaticCache(config=subject.model.config, max_cache_len=LENGTH + 5)
    taken = read_parameters(subject.model)
    outputs, state, start = [], (next(name for name in CACHES if name in taken), cache), 0
    for count in PARTS:
        logits, state = subject.cached(ids[:, start : start + count], state)
        outputs.append(logits)
        start += count
    return torch.cat(outputs, 1)


def narrow_windows(subject: AuditSubject) -> AuditSubject:
    """Return a copy of a model whose windows have `NARROW` tokens."""
    model = copy.deepcopy(subject.model)
    with ExitStack() as stack:
        stack.enter_context(narrowed(model, NARROW))
        stack.pop_all()  # the copy keeps it
    return replace_model(subject, model)


def follows_length(subject: AuditSubject) -> bool:
    """Return whether the configured frequencies follow the length of the text."""
    entries = getattr(subject.model.config.get_text_config(), "rope_parameters", None) or {}
    kinds = [entries, *(one for one in entries.values() if isinstance(one, Mapping))]
    return any(one.get("rope_type") in FIXED_LENGTH for one in kinds)


def compare_past_original(subject: AuditSubject) -> ModelComparison | None:
    """Compare one pass and parts across the original length; None if there is none."""
    if subject.model is None or subject.cached is None:
        return None
    entries = getattr(subject.model.config.get_text_config(), "rope_parameters", None) or {}
    original = entries.get("original_max_position_embeddings")
    if entries.get("rope_type") == "dynamic":
        original = subject.length
    if not isinstance(original, int) or original > LONGEST:
        return None
    ids = subject.draw_ids(1, original + 12)
    parts = (original - 4, 8, *(1,) * 8)
    return ModelComparison(
        f"parts across the original length of {original:,}",
        pass_whole(ids),
        partial(compute_parts, ids=ids, parts=parts),
        tokens=slice(-24, None),
        reference_tokens=slice(-24, None),
        is_optional=True,
    )


def _pad(ids: Tensor, token: int, *, left: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids, mask and positions [2, N + padding] of a padded and a whole text.

    The padded row is the first, so that its positions in other rows are seen.
    """
    extra = ids[1:, :PADDING]
    full = torch.cat([extra, ids[1:]], 1)
    filler = torch.full_like(extra, token)
    padded = torch.cat([filler, ids[:1]] if left else [ids[:1], filler], 1)
    mask = torch.ones_like(torch.cat([padded, full]))
    mask[0, slice(PADDING) if left else slice(-PADDING, None)] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    return torch.cat([padded, full]), mask, positions


def find_filler(subject: AuditSubject) -> int:
    """Return the token of padding: 0, which masks must hide as well as any other token.

    A decoder that follows an encoder makes its own input from the tokens that are no padding.
    """
    config = None if subject.model is None else subject.model.config.get_text_config()
    token = getattr(config, "pad_token_id", None)
    if not getattr(config, "is_encoder_decoder", False) or not isinstance(token, int):
        return 0
    return token if 0 <= token < subject.vocab_size else 0


def _describe_padding(ids: Tensor, mask: Tensor, positions: Tensor, *, is_causal: bool) -> Scene:
    visible = see_earlier(ids) if is_causal else torch.ones_like(see_earlier(ids))
    tokens = mask.bool()
    # A row without any visible token has no weights.
    visible = visible & tokens[:, None] | torch.eye(ids.shape[1], dtype=torch.bool)
    return Scene(ids, positions, visible, padding=~tokens)


def compare_padding(subject: AuditSubject, *, left: bool) -> Iterator[ModelComparison]:
    """Compare tokens alone and padded."""
    subject.require("attention_mask")
    if not _has_room(subject, LENGTH + PADDING):
        raise NotAskedError(f"the model has {subject.length} positions only")
    ids = subject.draw_ids(2, LENGTH)
    padded, mask, positions = _pad(ids, find_filler(subject), left=left)
    takes_positions = "positions" in subject.options
    options = {"positions": positions} if left and takes_positions else {}
    scene = _describe_padding(padded, mask, positions, is_causal=subject.is_causal)
    tokens = slice(PADDING, None) if left else slice(-PADDING)
    whole = padded[1:]
    # Encoders count from other numbers by default, some of them by the token of padding.
    given = {"positions": make_positions(whole)} if options and not subject.is_causal else {}
    alone = {name: values[:, :LENGTH] for name, values in given.items()}

    def compute(subject: AuditSubject) -> Tensor:
        return subject.logits(padded, attention_mask=mask, **options)

    yield ModelComparison(
        "one pass", pass_whole(ids[:1], **alone), compute, rows=slice(1), tokens=tokens, scene=scene
    )
    yield ModelComparison(
        "one pass, the row without padding",
        pass_whole(whole, **given),
        compute,
        rows=slice(1, 2),
        scene=scene,
    )
    if not left or subject.cached is None:
        return

    model = subject.model
    # A state has no keys to hide, so that generation passes the mask of a prompt only.
    has_keys = model is None or bool(find_scoring(model, lambda: subject.logits(ids)))

    def generate(subject: AuditSubject) -> Tensor:
        """Return logits as generation computes them: a prompt, then single tokens."""
        assert subject.cached is not None
        outputs, cache, start = [], None, 0
        for count in (PADDING + LENGTH - 4, 1, 1, 1, 1):
            stop = start + count
            given = {name: values[:, start:stop] for name, values in options.items()}
            if not start or has_keys:
                given["attention_mask"] = mask[:, :stop]
            logits, cache = subject.cached(padded[:, start:stop], cache, **given)
            outputs.append(logits)
            start = stop
        return torch.cat(outputs, 1)

    yield ModelComparison(
        "generation of a batch",
        pass_whole(ids[:1]),
        generate,
        rows=slice(1),
        tokens=tokens,
        scene=scene,
    )


def compare_packing(subject: AuditSubject) -> Iterator[ModelComparison]:
    """Compare a document alone and packed behind another one."""
    if not subject.is_causal and "documents" not in subject.options:
        raise NotAskedError("the model has no way to tell texts of a row apart")
    ids = subject.draw_ids(2, LENGTH)
    first = 17
    row = torch.cat([ids[1:, :first], ids[:1]], 1)
    positions = torch.cat([make_positions(row[:, :first]), make_positions(ids[:1])], 1)
    documents = torch.zeros_like(row)
    documents[:, first:] = 1
    visible = see_earlier(row) & (documents[:, :, None] == documents[:, None])
    scene = Scene(row, positions, visible, documents=documents)
    if not _has_room(subject, row.shape[1]):
        raise NotAskedError(f"the model has {subject.length} positions only")
    ways: list[tuple[str, dict[str, Tensor]]] = []
    if "documents" in subject.options:
        given = {"positions": positions} if "positions" in subject.options else {}
        ways.append(("numbers of documents", {**given, "documents": documents}))
    # A subject that takes numbers of documents separates texts by these.
    if "positions" in subject.options and "documents" not in subject.options:
        ways.append((RESTARTS, {"positions": positions}))
    if {"positions", "attention_mask"} <= subject.options:
        options = {"positions": positions, "attention_mask": visible[:, None]}
        ways.append((MASK, options))
    if not ways:
        raise NotAskedError("the model takes neither position ids nor numbers of documents")
    for name, options in ways:
        yield ModelComparison(
            name,
            pass_whole(ids[:1]),
            partial(_pack, row, options),
            tokens=slice(first, None),
            scene=scene,
        )


def _pack(ids: Tensor, options: dict[str, Tensor], subject: AuditSubject) -> Tensor:
    return subject.logits(ids, **_cast(options, subject))


def _cast(options: dict[str, Tensor], subject: AuditSubject) -> dict[str, Any]:
    """Return a pattern of visible tokens as the mask that a model's attention adds."""
    mask = options.get("attention_mask")
    if mask is None or subject.model is None:
        return options
    return {**options, "attention_mask": make_masks(mask[:, 0], subject)}


def make_masks(visible: Tensor, subject: AuditSubject, narrow: Tensor | None = None) -> Any:
    """Return the mask that a model adds for a pattern [B, N, N], for each type of layers if named.

    A mask of four axes is taken unchanged, so that it has the windows of the layers.

    Args:
        visible: Whether a token sees another one.
        subject: A subject with a model.
        narrow: The same for layers with a window; by default `visible` within the window.
    """
    config = subject.model.config.get_text_config()
    window = read_window(config)
    types = getattr(config, "layer_types", None)
    if subject.has_unknown_class:
        types = None  # its forward takes one mask
    whole = make_float_mask(visible[:, None], subject)
    if window is None:
        return whole
    if narrow is None:
        narrow = visible & torch.ones_like(visible).triu(1 - window)
    windowed = make_float_mask(narrow[:, None], subject)
    if not types:
        return windowed
    if len(set(types)) == 1:
        return windowed if is_windowed_kind(types[0]) else whole
    # Classes name masks by layers, or by these two where layers do more than attention.
    names = {*types, "full_attention", "sliding_attention"}
    return {name: windowed if is_windowed_kind(name) else whole for name in names}


def make_float_mask(visible: Tensor, subject: AuditSubject) -> Tensor:
    """Return a mask with 0 for visible tokens and the smallest number for others."""
    dtype = next(subject.model.parameters()).dtype
    lowest = torch.finfo(dtype).min
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill(
        ~visible, lowest
    )


def list_shifts(length: int | None) -> list[int]:
    """List shifts that place tokens across powers of 2, or just before the last position."""
    longest = (length or 2**17) - LENGTH
    shifts = [2**power - LENGTH // 2 for power in range(5, 18)]
    return [shift for shift in shifts if shift <= longest]


def compare_shift(subject: AuditSubject) -> Iterator[ModelComparison]:
    """Compare tokens at position 0 and at later positions."""
    subject.require("positions")
    ids = subject.draw_ids(1, LENGTH)
    for shift in list_shifts(subject.length):
        yield shift_text(ids, shift)


def shift_text(ids: Tensor, shift: int) -> ModelComparison:
    """Compare texts at position 0 and at another one."""
    positions = make_positions(ids, shift)
    return ModelComparison(
        f"a shift by {shift:,}",
        pass_whole(ids, positions=make_positions(ids)),
        pass_whole(ids, positions=positions),
        scene=Scene(ids, positions, see_earlier(ids)),
        since=shift,
    )
