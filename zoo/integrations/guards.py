"""Guards of transformers' classes: what is done to an equipped model works, or raises by name.

Methods are guarded in their class, not in a model: a model whose part is equipped, a copy, and an
unpickled model are not known to `zoo.equip`, but their calls pass through the class. Models that
zoo did not change are handed on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

from torch import nn
from transformers import GenerationMixin, PreTrainedModel

from zoo.errors import OptionError
from zoo.integrations.equipment import find_changed, is_equipped
from zoo.integrations.saved_equipment import holds_equipped, load_weights, save

# A guard receives the original method of the model, the model, and the arguments of the call.
Guard = Callable[..., Any]


def guard_classes() -> None:
    """Guard the methods of transformers that would lose encodings. A second call does nothing."""
    for name, guard in MODEL_GUARDS.items():
        _guard_method(PreTrainedModel, name, guard)
    _guard_method(GenerationMixin, "generate", _generate)
    # Importing the Trainer takes seconds; whoever uses it has imported it.
    if "transformers.trainer" in sys.modules:
        trainer = sys.modules["transformers.trainer"].Trainer
        for name, guard in TRAINER_GUARDS.items():
            _guard_method(trainer, name, guard, find_model=lambda found: found.model)


def _guard_method(
    cls: type[Any], name: str, guard: Guard, find_model: Callable[[Any], nn.Module] = lambda x: x
) -> None:
    """Call a guard in place of a method, for objects whose model `zoo.equip` changed."""
    original = getattr(cls, name)
    if hasattr(original, "zoo_guard"):
        return

    @wraps(original)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        if find_changed(find_model(self)) is None:
            return original(self, *args, **kwargs)
        return guard(partial(original, self), self, *args, **kwargs)

    guarded.zoo_guard = guard  # type: ignore[attr-defined]
    setattr(cls, name, guarded)


def _save(
    original: Guard,
    model: PreTrainedModel,
    save_directory: str | Path,
    is_main_process: bool = True,
    state_dict: Any = None,
    push_to_hub: bool = False,
    max_shard_size: int | str = "",
    variant: str | None = None,
    **options: Any,
) -> None:
    """Save an equipped model with its encodings, in one file whatever `max_shard_size`."""
    if not is_equipped(model):
        problem = f"{type(model).__name__} is a part of an equipped model, or has an equipped part"
        raise OptionError("model", f"{problem}; save the model that zoo.equip changed")
    refused = {"push_to_hub": push_to_hub, "variant": variant, **options}
    refused = {name: one for name, one in refused.items() if name not in IGNORED and one}
    for name in refused:
        problem = f"zoo.save has no option {name}"
        raise OptionError(name, f"{problem}; leave it out, or call zoo.unequip first")
    # Trainer imports late, and saves before it loads the best of its checkpoints.
    guard_classes()
    if is_main_process:
        save(model, save_directory, state_dict=state_dict)


# What they choose has no meaning for the folder of an equipped model.
IGNORED = ("safe_serialization", "save_original_format", "save_peft_format", "token")


def _set_implementation(
    original: Guard, model: PreTrainedModel, attn_implementation: Any, *args: Any, **options: Any
) -> Any:
    """Accept only zoo's own implementation of attention."""
    if attn_implementation != "zoo":
        problem = f"attn_implementation {attn_implementation!r} computes no encodings"
        remedy = "choose a backend in zoo.equip, or call zoo.unequip first"
        raise OptionError("attn_implementation", f"{problem}; {remedy}")
    return original(attn_implementation, *args, **options)


def _generate(original: Guard, model: Any, *args: Any, **options: Any) -> Any:
    """Generate text, but by contrastive search."""
    chosen = options.get("generation_config") or (args[1] if len(args) > 1 else None)
    chosen = chosen or model.generation_config
    alpha, samples = (
        options.get(name, getattr(chosen, name, None)) for name in ("penalty_alpha", "do_sample")
    )
    if alpha and not samples:
        # transformers would load the search from its hub, as code that nobody tried with encodings.
        problem = "contrastive search does not know the caches of an equipped model"
        raise OptionError("penalty_alpha", f"{problem}; leave penalty_alpha out, or sample")
    return original(*args, **options)


def _refuse(name: str, remedy: str) -> Guard:
    """Return a guard that refuses the call, with another way to do it."""

    def refuse(original: Guard, model: Any, *args: Any, **options: Any) -> Any:
        raise OptionError("model", f"{name} of an equipped model is not supported; {remedy}")

    return refuse


def _load_checkpoint(
    original: Guard, trainer: Any, resume_from_checkpoint: str, model: Any = None
) -> None:
    """Load a checkpoint of an equipped model, to resume."""
    if not holds_equipped(resume_from_checkpoint):
        original(resume_from_checkpoint, model)
        return
    load_weights(trainer.model if model is None else model, resume_from_checkpoint)


def _load_best(original: Guard, trainer: Any) -> None:
    """Load the best checkpoint of an equipped model."""
    folder = trainer.state.best_model_checkpoint
    if not holds_equipped(folder):
        original()
        return
    load_weights(trainer.model, folder)


FRESH = "it draws weights anew, positions among them; call it before zoo.equip"
MODEL_GUARDS: dict[str, Guard] = {
    "save_pretrained": _save,
    "set_attn_implementation": _set_implementation,
    "init_weights": _refuse("init_weights", FRESH),
    "initialize_weights": _refuse("initialize_weights", FRESH),
    "post_init": _refuse("post_init", FRESH),
    "add_adapter": _refuse("add_adapter", "use peft.get_peft_model"),
    "load_adapter": _refuse("load_adapter", "use peft.PeftModel.from_pretrained"),
}
TRAINER_GUARDS: dict[str, Guard] = {
    "_load_from_checkpoint": _load_checkpoint,
    "_load_best_model": _load_best,
}
