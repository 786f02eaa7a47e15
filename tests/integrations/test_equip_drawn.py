"""What people do with an equipped model, each in families that a seed draws.

Whatever the model itself does, it does with its own positions put back by zoo, or with others.
One or two families of each are tried for every commit, and twelve more at night.
"""

import copy
import importlib
import random
import sys
import warnings
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")

import zoo  # noqa: E402
from zoo.errors import OptionError  # noqa: E402
from zoo.integrations.structure import find_structure  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "build"))
types = importlib.import_module("equip_types")
small_models = importlib.import_module("small_models")
sys.path.pop(0)

ROWS = types.read_record()["rows"]
SECONDS = 5.0  # in which a family of these tests is equipped, as recorded
QUICK = 0.3  # and one that is tried for every commit
NIGHTLY = 12  # families of each test
NEW_TOKENS = 4
PADDING = 3


@pytest.fixture(autouse=True)
def _quiet():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def list_equipped(seconds):
    """The families that are equipped in less than some seconds, by the record."""
    return sorted(
        name
        for name, row in ROWS.items()
        if types.is_equipped(row) and row["seconds"] <= seconds and row["save"] == "yes"
    )


def draw_families(count):
    """Parametrize a test with families that follow from its name, so many for every commit."""

    def mark(test):
        draw = random.Random(test.__name__)
        names = draw.sample(list_equipped(QUICK), count)
        others = draw.sample(sorted({*list_equipped(SECONDS)} - {*names}), NIGHTLY)
        night = [pytest.param(name, marks=pytest.mark.nightly) for name in others]
        return pytest.mark.parametrize("name", [*names, *night])(test)

    return mark


def ask_model(run, *args):
    """What the model itself does, which is not equipped; the test is skipped if it cannot."""
    try:
        return run(*args)
    # A model of a library fails in its own ways.
    except Exception as error:
        pytest.skip(f"the model itself: {' '.join(str(error).split())[:200]}")


@torch.no_grad()
def generate(model, rows=2, **options):
    """Greedy tokens after texts that are padded on the left, and longer than a window."""
    ids = torch.nn.functional.pad(types.make_ids()[:rows], (PADDING, 0))
    mask = torch.ones_like(ids)
    mask[:, :PADDING] = 0
    chosen = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "eos_token_id": None}
    return model.generate(ids, attention_mask=mask, pad_token_id=0, **chosen, **options)


@draw_families(2)
def test_generated_tokens_are_those_of_the_model(name):
    model = small_models.build_model(name)
    right = ask_model(generate, model)
    zoo.equip(model, "own")
    assert torch.equal(generate(model), right)


@draw_families(2)
def test_a_static_cache_generates_the_tokens_of_the_dynamic_one(name):
    """Also where a layer's window is full, which both caches drop the first keys of."""
    model = small_models.build_model(name)
    right = ask_model(lambda: generate(model, cache_implementation="static"))
    if not torch.equal(right, generate(model)):
        pytest.skip("the model itself: other tokens with a static cache")
    for encoding in ("own", "alibi"):
        zoo.equip(model, encoding)
        found = generate(model, cache_implementation="static")
        assert torch.equal(found, generate(model))
        assert encoding != "own" or torch.equal(found, right)
        zoo.unequip(model)


@draw_families(2)
def test_an_assistant_changes_no_token(name):
    if name == "moshi":
        pytest.skip(
            "the model itself: its masks have no window, which its cache has (docs/audit.md)"
        )
    model = small_models.build_model(name)
    assistant = copy.deepcopy(model)
    right = ask_model(lambda: generate(model, rows=1, assistant_model=assistant))
    if not torch.equal(right, generate(model, rows=1)):
        pytest.skip("the model itself: other tokens with an assistant")
    zoo.equip(model, "alibi")
    found = generate(model, rows=1, assistant_model=assistant)
    assert torch.equal(found, generate(model, rows=1))


@draw_families(1)
def test_contrastive_search_is_refused_by_name(name):
    model = small_models.build_model(name)
    zoo.equip(model, "alibi")
    with pytest.raises(OptionError, match="leave penalty_alpha out"):
        generate(model, penalty_alpha=0.6, top_k=4, trust_remote_code=True)
    chosen = transformers.GenerationConfig(penalty_alpha=0.6, top_k=4, max_new_tokens=2)
    with pytest.raises(OptionError, match="contrastive search"):
        model.generate(types.make_ids(), chosen)


@draw_families(1)
@torch.no_grad()
def test_a_compiled_model_computes_what_it_does_uncompiled(name):
    model, ids = small_models.build_model(name), types.make_ids()

    def compile_and_compute():
        torch._dynamo.reset()
        return types.compute(torch.compile(model, backend="eager"), ids)

    found = ask_model(compile_and_compute)
    if not types.is_close(found, types.compute(model, ids)):
        pytest.skip("the model itself: other numbers when compiled")
    zoo.equip(model, "alibi")
    assert types.is_close(compile_and_compute(), types.compute(model, ids))


def find_gradients(model):
    model.zero_grad()
    torch.manual_seed(0)
    ids = types.make_ids()
    model.train()(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    gradients = {key: one.grad for key, one in model.named_parameters() if one.grad is not None}
    return {key: one.clone() for key, one in gradients.items()}


def find_checkpointed_gradients(model):
    model.gradient_checkpointing_enable()
    gradients = find_gradients(model)
    model.gradient_checkpointing_disable()
    return gradients


def are_equal(found, right):
    largest = max(float(one.abs().max()) for one in right.values())
    return found.keys() == right.keys() and all(
        bool((found[key] - right[key]).abs().max() <= 1e-4 * largest) for key in right
    )


@draw_families(2)
def test_checkpointing_changes_no_gradient(name):
    model = small_models.build_model(name)
    right = ask_model(find_gradients, model)
    if not are_equal(ask_model(find_checkpointed_gradients, model), right):
        pytest.skip("the model itself: other gradients with checkpointing")
    zoo.equip(model.eval(), "t5")
    assert are_equal(find_checkpointed_gradients(model), find_gradients(model))


@draw_families(2)
@torch.no_grad()
def test_half_precision_is_as_exact_as_that_of_the_model(name):
    model, ids = small_models.build_model(name), types.make_ids()
    exact = types.compute(model, ids)
    model.to(torch.bfloat16)
    own = ask_model(types.compute, model, ids).float()
    zoo.equip(model, "own")
    found = types.compute(model, ids).float()
    assert (found - own).abs().mean() <= 2 * (own - exact).abs().mean()


@draw_families(1)
@torch.no_grad()
def test_a_layer_on_another_device_is_equipped(name, tmp_path):
    """A device map that keeps the last layer on the disk, from where hooks load it."""
    pytest.importorskip("accelerate")
    model, ids = small_models.build_model(name), types.make_ids()
    model.save_pretrained(tmp_path)
    layers = find_structure(model).first.rpartition(".")[0]
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]
    devices = {key: "cpu" for key, _ in tensors if not key.startswith(f"{layers}.")}
    count = len(model.get_submodule(layers))
    devices |= {f"{layers}.{number}": "cpu" for number in range(count)}
    devices[f"{layers}.{count - 1}"] = "disk"
    options = {"device_map": devices, "offload_folder": str(tmp_path / "offloaded")}
    other = ask_model(lambda: type(model).from_pretrained(tmp_path, **options).eval())
    assert any(one.is_meta for one in other.parameters())
    right = ask_model(types.compute, other, ids)
    for encoding in ("own", "alibi"):
        zoo.equip(model, encoding)
        zoo.equip(other, encoding)
        found = types.compute(other, ids)
        assert types.is_close(found, types.compute(model, ids))
        assert encoding != "own" or types.is_close(found, right)
        zoo.unequip(model)
        zoo.unequip(other)


def train_adapters(model, base, folder, **options):
    """Train adapters of a model, and load them in another; the losses, and whether they compute the same."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=1, target_modules="all-linear", **options)
    adapted, ids = peft.get_peft_model(model, config), types.make_ids()
    trained = [one for one in adapted.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.01)
    losses = []
    for _ in range(2):
        loss = adapted(input_ids=ids, labels=ids, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    adapted.eval().save_pretrained(folder)
    loaded = peft.PeftModel.from_pretrained(base, folder).eval()
    with torch.no_grad():
        return losses, types.is_close(types.compute(loaded, ids), types.compute(adapted, ids))


@draw_families(1)
def test_adapters_of_peft_are_trained_saved_and_loaded(name, tmp_path):
    models = [small_models.build_model(name)]
    models += [copy.deepcopy(models[0]) for _ in range(3)]
    for model in models[:2]:
        zoo.equip(model, "t5")
    losses, is_equal = train_adapters(
        *models[:2], tmp_path / "equipped", modules_to_save=["zoo_encoding"]
    )
    assert losses[1] < losses[0]
    if not is_equal and not train_adapters(*models[2:], tmp_path / "plain")[1]:
        pytest.skip("the model itself: peft loads other adapters than it saved")
    assert is_equal


@draw_families(1)
def test_the_trainer_of_transformers_trains_the_encodings(name, tmp_path):
    pytest.importorskip("accelerate")
    samples = [{"input_ids": ids, "labels": ids} for ids in types.make_ids()]
    options = {"max_steps": 1, "learning_rate": 0.01, "per_device_train_batch_size": 2}
    options |= {"use_cpu": True, "report_to": "none", "save_strategy": "no"}
    options |= {"disable_tqdm": True, "logging_strategy": "no"}

    def train(model):
        arguments = transformers.TrainingArguments(str(tmp_path), **options)
        return transformers.Trainer(model, arguments, train_dataset=samples).train()

    model = small_models.build_model(name)
    ask_model(train, copy.deepcopy(model))
    zoo.equip(model, "t5")
    before = {key: one.detach().clone() for key, one in model.zoo_encoding.named_parameters()}
    assert before
    assert train(model).training_loss > 0
    after = dict(model.zoo_encoding.named_parameters())
    assert not [key for key in before if torch.equal(after[key], before[key])]


@draw_families(2)
@torch.no_grad()
def test_a_saved_model_computes_the_same(name, tmp_path):
    model, ids = small_models.build_model(name), types.make_ids()
    zoo.equip(model, "t5")
    for parameter in model.zoo_encoding.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)))
    zoo.save(model, tmp_path)
    assert types.is_close(types.compute(zoo.load(tmp_path), ids), types.compute(model, ids))
