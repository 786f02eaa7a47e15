"""Compare a converted model with what transformers computes from the same published weights."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zoo.attention.layer import SelfAttention
from zoo.data.spec import DataSpec
from zoo.errors import CheckpointError
from zoo.formats.outputs import compare_outputs, copy_to_float64, hide_output
from zoo.formats.published import Published, PublishedFamily
from zoo.packages import explain_imports, list_missing, skip_without_package
from zoo.utils import escape_text, raise_if_out_of_memory
from zoo.weights import limit_model

log = logging.getLogger("zoo")

LENGTHS = (1, 19, 64)
"""Numbers of tokens of the texts that are compared, where the model reads as many."""
LONGEST = 512
"""The longest text that is compared, to reach past a window."""


def can_compare(published: Published) -> bool:
    """Return whether transformers is installed, and weights have a configuration for it."""
    if "model_type" not in published.config:
        return False
    is_installed = not list_missing(["transformers"])
    if not is_installed:
        log.info("the model is not compared with that of transformers, which is not installed")
    return is_installed


@torch.no_grad()
def compare_with_transformers(
    source: Path,
    published: Published,
    family: PublishedFamily,
    model: nn.Module,
    spec: DataSpec,
    longest: int,
) -> float | None:
    """Compare logits, or states where a file has no head, with those of transformers.

    Args:
        source: The folder or file of the weights.
        published: Its contents.
        family: The family that read them.
        model: The model of zoo, in evaluation mode.
        spec: What it reads.
        longest: The number of tokens of the longest text that it reads.

    Returns:
        The largest difference, relative to 1 + |output|; None where transformers is not installed
        or does not have the architecture.

    Raises:
        CheckpointError: transformers computes something else, or cannot load the weights.
    """
    reference: nn.Module | None = None
    with skip_without_package("the converted model is not compared with transformers"):
        reference = load_reference(source, published, family)
    if reference is None:
        return None

    largest = 0.0
    for inputs in draw_inputs(spec, list_lengths(model, longest)):
        compute = partial(compute_outputs, inputs=inputs, is_logits=family.has_logits)
        expected = compute(model)
        actual = _compute_reference(source, reference, inputs, family)[..., : expected.shape[-1]]

        def compute_exact(compute: Callable[[nn.Module], Tensor] = compute) -> Tensor:
            return compute(copy_to_float64(model))

        difference, allowed = compare_outputs(actual, expected, compute_exact)
        if not difference <= allowed:
            noun, shape = "logits" if family.has_logits else "states", tuple(inputs.shape)
            message = f"the {noun} of its recipe differ by {difference:.1e} from those that"
            message = f"{message} transformers computes, for inputs of shape {shape}"
            raise CheckpointError(f"{source}: {message}; nothing was written")
        largest = max(largest, difference)
    log.info("compared with transformers: the largest difference is %.1e", largest)
    return largest


def load_reference(source: Path, published: Published, family: PublishedFamily) -> nn.Module | None:
    """Load published weights as transformers does; None if it does not have the architecture.

    No code of the folder is run, and nothing is downloaded.

    Raises:
        CheckpointError: It cannot load them, or would start a weight at random.
        PackageError: transformers cannot be imported.
    """
    with explain_imports():
        import transformers

    kind = published.config["model_type"]
    if kind not in transformers.CONFIG_MAPPING:
        log.info("not compared with transformers, which does not have %s", escape_text(kind))
        return None
    # transformers changes nested entries
    settings = {
        key: deepcopy(value)
        for key, value in published.config.items()
        # code of a repository, which would be downloaded
        if key != "auto_map" and not key.endswith("_implementation")
    }
    if not settings.get("id2label"):
        settings.pop("id2label", None)
    # sizes that only the tensors state
    settings |= {key: size for key, size in family.sizes.items() if settings.get(key) is None}
    options: dict[str, Any] = {
        "dtype": torch.float32,
        "attn_implementation": "eager",
        "local_files_only": True,
        "use_safetensors": True,
        "output_loading_info": True,
    }
    if published.folder is None:
        options["state_dict"] = dict(published.weights)
        # files without config.json name no token that pads
        settings = {"pad_token_id": None, **settings}
    try:
        with hide_output():
            config = transformers.CONFIG_MAPPING[kind].from_dict(settings)
            model_class = getattr(transformers, family.auto)._model_mapping[type(config)]
            # without memory at first: entries that zoo ignores may ask for any
            with torch.device("meta"), limit_model(published.weights, source):
                model_class(config)
            model, loading_info = model_class.from_pretrained(
                published.folder, config=config, **options
            )
    except CheckpointError:
        raise
    except Exception as error:
        raise _refuse(source, "load it", error) from None
    random = sorted(
        name
        for name in {*loading_info["missing_keys"], *loading_info["mismatched_keys"]}
        if not re.fullmatch(family.dropped, f"{family.prefix}{name}")
    )
    if random:
        reason = f"transformers would start at random: {', '.join(random[:8])}"
        raise CheckpointError(escape_text(f"{source}: {reason}"))
    return model.eval()


def _compute_reference(
    source: Path, reference: nn.Module, inputs: Tensor, family: PublishedFamily
) -> Tensor:
    try:
        with hide_output():
            outputs = reference(inputs)
    except Exception as error:
        raise _refuse(source, f"compute inputs of shape {tuple(inputs.shape)}", error) from None
    output: Tensor = outputs.logits if family.has_logits else outputs.last_hidden_state
    return output


def _refuse(source: Path, action: str, error: Exception) -> CheckpointError:
    """Return the error that transformers fails with an action, with what it raised."""
    raise_if_out_of_memory(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = " ".join(lines[:3])[:300] or type(error).__name__
    return CheckpointError(escape_text(f"{source}: transformers cannot {action}: {cause}"))


def compute_outputs(model: nn.Module, inputs: Tensor, is_logits: bool) -> Tensor:
    """Compute logits, or the states after the last norm, of a model of zoo.

    Args:
        model: The model, whose type its inputs get.
        inputs: Tokens int64 [B, N], or images [B, C, H, W].
        is_logits: Whether logits are computed, not states.
    """
    if inputs.is_floating_point():
        inputs = inputs.to(next(model.parameters()).dtype)
    whole: Any = model
    outputs: Tensor = model(inputs) if is_logits else whole.run_blocks(whole.tokens(inputs)).x
    return outputs


def list_lengths(model: nn.Module, longest: int) -> list[int]:
    """Return the lengths of texts to compare, past the window of a layer where that is cheap."""
    windows = {part.window for part in model.modules() if isinstance(part, SelfAttention)}
    wanted = [*LENGTHS, *(window + 9 for window in windows if window is not None)]
    return sorted({min(length, longest) for length in wanted if length <= LONGEST})


def draw_inputs(spec: DataSpec, lengths: list[int]) -> Iterator[Tensor]:
    """Yield random inputs: texts of some lengths, or images of the trained size."""
    generator = torch.Generator().manual_seed(0)
    if (vocabulary := spec.token_vocabulary) is not None:
        for length in lengths:
            yield torch.randint(len(vocabulary), (2, length), generator=generator)
    elif spec.is_image:
        yield torch.randn(2, *spec.shape, generator=generator)
