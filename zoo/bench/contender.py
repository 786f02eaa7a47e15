"""What is compared: a way to make a model, under a name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from zoo.bench.shapes import Setting
from zoo.errors import Invalid
from zoo.functions import Attention

Make = Callable[[Setting], nn.Module]
"""A model that takes images [B, 3, L, L] or tokens [B, L] to logits. Raises Invalid where the setting does not allow it."""

Generate = Callable[[nn.Module, Tensor, int], object]
"""Continues a text [1, N] greedily by so many tokens, with a cache."""

Stream = Callable[[nn.Module, Tensor], Iterator[int]]
"""The tokens that follow a text [1, N], one by one, with a cache."""

Plan = Callable[[nn.Module, Tensor, str], str]
"""What computes attention of a model for inputs on a type of device."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A model of zoo or, with the name of zoo's own in `rival`, of a `peer`; None for what it cannot do or tell."""

    name: str
    make: Make
    peer: str | None = None
    rival: str | None = None
    generate: Generate | None = None
    stream: Stream | None = None
    plan: Plan | None = None
    layer: Callable[[Setting], Attention] | None = None


def refusal(contender: Contender, settings: Sequence[Setting]) -> str | None:
    """Why a model cannot be made or run, or None where it can; nothing is allocated and nothing computed."""
    try:
        with torch.device("meta"), torch.no_grad():
            for setting in settings:
                contender.make(setting)(setting.shape.inputs())
    except Invalid as error:
        return str(error)
    except Exception as error:  # of a plug-in, or of torch, which cannot count so far: told as what fails later is
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return None
