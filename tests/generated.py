"""SyntheticTask sources of text, small, and their sequences as text."""

import torch

from zoo.data.synthetic.addition import Addition
from zoo.data.synthetic.common_words import CommonWords
from zoo.data.synthetic.copying import Copying
from zoo.data.synthetic.counting import Counting
from zoo.data.synthetic.flipflop import Flipflop
from zoo.data.synthetic.multikey_passkey import MultikeyPasskey
from zoo.data.synthetic.parity import Parity
from zoo.data.synthetic.passkey import Passkey
from zoo.data.synthetic.recall import Recall
from zoo.data.synthetic.selective_copy import SelectiveCopy
from zoo.data.synthetic.variable_tracking import VariableTracking

SMALL = {
    Addition: {"digits": 5},
    CommonWords: {"length": 64, "common": 3, "common_repeats": 8, "other_repeats": 2},
    Copying: {"symbols": 6},
    Counting: {"steps": 20},
    Flipflop: {"length": 16},
    MultikeyPasskey: {"length": 80, "digits": 3},
    Parity: {"bits": 12},
    Passkey: {"length": 40},
    Recall: {"length": 24, "pairs": 4, "keys": 8, "values": 8},
    SelectiveCopy: {"symbols": 6, "blanks": 6},
    VariableTracking: {"length": 100, "chains": 2, "hops": 2},
}
PADDED = (Addition, Copying, Counting, Parity)  # whose sequences differ in length


def fetch(data, part="test", epoch=0):
    """Rows (inputs, targets, documents or None) of a part, without what batches add to them."""
    loader = data.build_loader(part)
    if part == "train":
        loader.epoch_sampler.set_epoch(epoch)
    for batch in loader:
        documents = (
            batch.documents if batch.documents is not None else torch.zeros_like(batch.inputs)
        )
        for inputs, targets, own in zip(batch.inputs, batch.targets, documents, strict=True):
            assert (targets[own < 0] == -100).all()
            yield inputs[own == 0].tolist(), targets[own == 0].tolist()


def read_answers(data, part="test"):
    """(what stands before the answer, the answer) as text, given that what is asked is what ends each sequence."""
    decode = data.spec.vocabulary.decode
    for inputs, targets in fetch(data, part):
        answer = [token for token in targets if token >= 0]
        assert targets[-len(answer) :] == answer
        assert inputs[len(inputs) - len(answer) + 1 :] == answer[:-1]
        yield decode(inputs[: len(inputs) - len(answer) + 1]), decode(answer)
