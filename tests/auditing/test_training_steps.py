"""`zoo.audit_training`: steps of zoo, of transformers' Trainer and of a hand-written loop."""

import planted
import pytest
import torch
from language import decoder
from torch.nn import functional as F

import zoo
from zoo.data.batches import TextBatch
from zoo.models.transformer import enable_activation_checkpointing
from zoo.tasks.metrics import mean_loss

DOCUMENTS = [
    torch.randint(5, 90, (size,), generator=torch.Generator().manual_seed(size)).tolist()
    for size in (9, 14, 6, 11)
]


def make_step(*, leak=None, mean_of_means=False, build=planted.build_decoder):
    """Make the step of a hand-written loop."""
    model = build()

    def compute_loss(documents, packed):
        """Return the sum of the losses of all tokens."""
        if not packed:
            return sum(compute_loss([document], packed=True) for document in documents)
        ids = torch.tensor([[token for document in documents for token in document]])
        positions = torch.tensor([[p for document in documents for p in range(len(document))]])
        options = {"use_cache": leak == "cache"}
        if leak == "mask":
            options["attention_mask"] = torch.ones_like(ids)
        logits = model(input_ids=ids, position_ids=positions, **options).logits[0, :-1]
        is_inside = positions[0, 1:] > 0
        return F.cross_entropy(logits[is_inside], ids[0, 1:][is_inside], reduction="sum")

    def step(documents, *, packed=False, accumulation=1, checkpointing=False):
        model.train()
        model.zero_grad()
        if checkpointing:
            model.activation_checkpointing_enable({"use_reentrant": False})
        count = sum(len(document) - 1 for document in documents)
        total = 0.0
        size = -(-len(documents) // accumulation)
        for start in range(0, len(documents), size):
            part = documents[start : start + size]
            tokens = sum(len(document) - 1 for document in part)
            scale = 1 / (tokens * accumulation) if mean_of_means else 1 / count
            loss = compute_loss(part, packed) * scale
            loss.backward()
            total += loss.item()
        if checkpointing:
            model.activation_checkpointing_disable()
        return total, {name: one.grad for name, one in model.named_parameters()}

    return step


def test_a_sound_loop_keeps_all_laws():
    report = zoo.audit_training(make_step(), DOCUMENTS)
    assert [result.status for result in report.results] == ["kept"] * 3, str(report)


@pytest.mark.parametrize("leak", ["mask", "cache"])
def test_a_leak_between_packed_documents_is_found(leak):
    # transformers reads restarting positions only without a mask and without a cache.
    (result,) = zoo.audit_training(make_step(leak=leak), DOCUMENTS).broken
    assert result.law == "packing"
    assert "loss" in result.cause
    assert result.module is not None


def test_a_mean_of_means_is_found():
    (result,) = zoo.audit_training(make_step(mean_of_means=True), DOCUMENTS).broken
    assert result.law == "accumulation"


def test_checkpointing_that_forgets_positions_is_found():
    step = make_step(build=planted.turn_neither_in_checkpointing)
    (result,) = zoo.audit_training(step, DOCUMENTS).broken
    assert (result.law, result.explanation) == ("checkpointing", "checkpointing")


def test_the_trainer_of_transformers_keeps_packing(tmp_path):
    # a second of imports, which every collection would take
    from transformers import DataCollatorWithFlattening, Trainer, TrainingArguments

    model = planted.build_decoder()
    arguments = TrainingArguments(
        output_dir=str(tmp_path), report_to=[], use_cpu=True, disable_tqdm=True
    )
    collate = DataCollatorWithFlattening()
    trainer = Trainer(model=model, args=arguments)

    def step(documents, *, packed=False):
        model.zero_grad()
        groups = [documents] if packed else [[document] for document in documents]
        count = torch.tensor(sum(len(document) - 1 for document in documents))
        total = 0.0
        for group in groups:
            batch = collate([{"input_ids": document} for document in group])
            total += float(trainer.training_step(model, dict(batch), num_items_in_batch=count))
        return total, {name: one.grad for name, one in model.named_parameters()}

    report = zoo.audit_training(step, DOCUMENTS)
    status = {result.law: result.status for result in report.results}
    assert status == {"packing": "kept", "accumulation": "not asked", "checkpointing": "not asked"}


def test_wrong_steps_are_refused():
    with pytest.raises(zoo.RecipeError, match="loss"):
        zoo.audit_training(lambda documents: 1.0, DOCUMENTS)


def test_the_step_of_zoo_keeps_all_laws():
    torch.manual_seed(0)
    model = decoder("rope")

    def make_batch(documents):
        documents = [[token % 11 for token in document] for document in documents]
        ids = torch.tensor([[token for document in documents for token in document]])
        numbers = [number for number, document in enumerate(documents) for _ in document]
        targets = [token for document in documents for token in [*document[1:], -100]]
        return TextBatch(ids, torch.tensor([targets]), torch.tensor([numbers]))

    def step(documents, *, packed=False, checkpointing=False):
        model.train()
        model.zero_grad()
        if checkpointing:
            enable_activation_checkpointing(model)
        count = sum(len(document) - 1 for document in documents)
        total = 0.0
        for part in [documents] if packed else [[document] for document in documents]:
            batch = make_batch(part)
            weight = sum(len(document) - 1 for document in part) / count
            loss = mean_loss(model(batch.inputs, batch.documents), batch.targets) * weight
            loss.backward()
            total += loss.item()
        return total, {name: one.grad for name, one in model.named_parameters()}

    report = zoo.audit_training(step, DOCUMENTS)
    status = {result.law: result.status for result in report.results}
    assert status == {"packing": "kept", "accumulation": "not asked", "checkpointing": "kept"}
