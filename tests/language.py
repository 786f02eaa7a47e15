"""Language models small enough for tests, over an alphabet of eleven."""

import torch

import zoo
from zoo.attention.mixer import make_mixer_factory
from zoo.data.corpus.tokenizer import Characters
from zoo.data.spec import TextClassificationSpec, TextSpec
from zoo.models.decoder import Decoder
from zoo.models.encoder import Encoder
from zoo.options import Choice
from zoo.tasks.masked_lm import MaskedLM

SAMPLES = TextSpec(length=12, vocabulary=Characters("abcdefghijk"))
PASSAGES = TextClassificationSpec(
    length=12, vocabulary=Characters("abcdefghijk"), classes=3, names=("one", "two", "three")
)
INDEXED = {  # where a model does not know the final length
    name: {"coordinates": "index"}
    for name in zoo.encoding_names()
    if zoo.encoding_class(name).coordinates != "index"
}


def give_mixer(name):
    """Return the options of a model whose layers all have a mixer."""
    types = {"mixed": {"mixer": make_mixer_factory(Choice(name, {}))}}
    return {"layer_types": types, "layer_pattern": ("mixed",)}


def links(*names, options=None):
    return {
        n: lambda dims, n=n: zoo.encoding({"name": n, **(options or {}).get(n, {})}, dims)
        for n in names
    }


def decoder(*names, **options):
    chosen = {
        "dim": 16,
        "depth": 2,
        "heads": 2,
        "encoding": links(*names, options=INDEXED),
        **options,
    }
    return lively(Decoder(SAMPLES, **chosen))


def encoder(*names, **options):
    return lively(
        Encoder(
            SAMPLES, **{"dim": 16, "depth": 2, "heads": 2, "encoding": links(*names), **options}
        )
    )


def lively(model):
    """The model in evaluation, with weights so large that attention is not close to uniform."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(std=0.5)
    return model.eval()


def text(rows=2, length=12):
    return torch.randint(len(SAMPLES.vocabulary), (rows, length))


def mask_by_contents(self, batch, draws, others, original=MaskedLM.mask):
    """Mask tokens as `MaskedLM.mask` does, but by the contents of a window and not by draws."""
    mixed = batch.inputs * 0.37 + torch.arange(batch.inputs.shape[1]) * 0.61
    draws = torch.stack([mixed % 1, mixed * 7 % 1])
    return original(self, batch, draws, (batch.inputs + 1) % self.mask_token)
