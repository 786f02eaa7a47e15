"""`zoo.audit_batches`: collators and packers, with planted faults."""

import pytest
import torch
from transformers import DataCollatorWithFlattening

import zoo

DOCUMENTS = [
    torch.randint(10, 90, (size,), generator=torch.Generator().manual_seed(size)).tolist()
    for size in (7, 12, 5, 9)
]


def pack(*, restart=True, mask="block", cross=False, hide=False):
    """Pack all documents into one row, and pad it with 0."""
    ids = [token for document in DOCUMENTS for token in document]
    numbers = [number for number, document in enumerate(DOCUMENTS) for _ in document]
    positions = [place for document in DOCUMENTS for place in range(len(document))]
    labels = list(ids)
    if not cross:
        labels = [
            -100 if place == 0 else token for token, place in zip(ids, positions, strict=True)
        ]
    batch = {
        "input_ids": torch.tensor([[*ids, 0, 0]]),
        "labels": torch.tensor([[*labels, *((0, 0) if hide else (-100, -100))]]),
        "position_ids": torch.tensor([[*(positions if restart else range(len(ids))), 0, 1]]),
    }
    texts = torch.tensor([*numbers, 9, 9])
    same = texts[:, None] == texts
    if mask == "block":
        batch["attention_mask"] = (same & torch.ones_like(same).tril())[None, None]
    if mask == "causal":
        batch["attention_mask"] = torch.ones_like(same).tril()[None, None]
    if mask == "ones":
        batch["attention_mask"] = (texts != 9).long()[None]
    return [batch]


def find_broken(batches):
    return {result.law: result for result in zoo.audit_batches(batches, DOCUMENTS).broken}


def test_sound_packing_keeps_all_laws():
    assert not find_broken(pack())
    assert not find_broken(pack(mask=None))


@pytest.mark.parametrize(
    ("options", "laws"),
    [
        ({"restart": False}, {"positions"}),
        ({"restart": False, "mask": None}, {"positions", "visible"}),
        ({"mask": "causal"}, {"visible"}),
        ({"mask": "ones"}, {"visible"}),
        ({"cross": True}, {"labels"}),
        ({"hide": True}, {"padding"}),
    ],
)
def test_planted_faults_are_found(options, laws):
    assert laws == set(find_broken(pack(**options))), options


def test_faults_name_the_token():
    broken = find_broken(pack(mask="ones"))["visible"]
    assert broken.explanation == "mask_of_documents"
    assert broken.cause.startswith("token 7 of row 0 of batch 0 sees token 0 of another document")


def test_lost_and_repeated_tokens_are_found():
    (batch,) = pack(mask=None)
    shorter = {name: value[:, :-6] for name, value in batch.items()}
    assert "tokens" in find_broken([shorter])
    assert "tokens" in find_broken([batch, batch])


def test_cumulative_lengths_must_agree():
    (batch,) = pack(mask=None)
    ends = torch.tensor([0, 7, 19, 24, 33, 35])
    assert not find_broken([{**batch, "cu_seq_lens_q": ends}])
    shifted = ends + torch.tensor([0, 0, 1, 0, 0, 0])
    assert {"masks", "visible"} <= set(find_broken([{**batch, "cu_seq_lens_q": shifted}]))


def test_collators_of_transformers():
    features = [{"input_ids": document} for document in DOCUMENTS]
    flattening = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    assert not find_broken([flattening(features)])
    assert not find_broken([DataCollatorWithFlattening()(features)])


def test_padded_batches():
    longest = max(map(len, DOCUMENTS))
    rows = [document + [0] * (longest - len(document)) for document in DOCUMENTS]
    batch = {"input_ids": torch.tensor(rows)}
    batch["attention_mask"] = (batch["input_ids"] != 0).long()
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    assert not find_broken([{**batch, "labels": labels}])
    assert "padding" in find_broken([{**batch, "labels": batch["input_ids"]}])


def test_batches_without_tokens_are_refused():
    with pytest.raises(zoo.RecipeError, match="input_ids"):
        zoo.audit_batches([{"pixels": 1}], DOCUMENTS)
