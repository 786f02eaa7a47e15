"""Whatever is wrong with text, its models or a prompt: an exit code, at most six lines that help, nothing written."""

import pytest
from tiny import LETTERS, TINY, language

FILES = {
    "empty.txt": b"",
    "latin.txt": "caf\u00e9 ".encode("latin-1") * 200,
    "short.txt": b"abc",
    "greek.txt": "\u03b1\u03b2\u03b3 abc ".encode() * 200,
    "broken.json": b"{",
    "tokenizer.json": b'{"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0, "?": 1}, "unk_token": "?"}}',
}
SUBWORDS = "data.tokens=subword"


LINEAR = ("model.layer_types={linear: {mixer: linear}}", "model.layer_pattern=[linear]")


def chain(*names):
    return f"model.encoding=[{','.join(names)}]"


RECIPES = {
    # the text
    "an empty file": (["data.files=[empty.txt]"], 4, ["empty.txt", "empty"]),
    "a missing file": (["data.files=[nowhere.txt]"], 4, ["nowhere.txt", "no such file"]),
    "a pattern that matches nothing": (
        ["data.files=[none*.txt]"],
        4,
        ["none*.txt", "no file matches"],
    ),
    "a folder": (["data.files=[.]"], 4, [".: a folder", "*.txt"]),
    "no UTF-8": (["data.files=[latin.txt]"], 4, ["latin.txt", "UTF-8", "byte 3"]),
    "no files": (["data.files=[]"], 2, ["data.files", "name at least one"]),
    "a text shorter than a window": (
        ["data.files=[short.txt]"],
        2,
        ["data.length", "window of 16", "17 tokens"],
    ),
    "a window longer than the text": (
        ["data.length=4096"],
        2,
        ["data.length", "4096", "4097 tokens"],
    ),
    "a stride longer than a window": (["data.stride=17"], 2, ["data.stride", "17", "length 16"]),
    "a stride longer than a length": (
        ["evaluate.lengths=[8]", "evaluate.stride=9"],
        2,
        ["command line", "evaluate.stride", "9", "length 8"],
    ),
    "shares of everything": (["data.val=0.5", "data.test=0.5"], 2, ["data.val", "train"]),
    "a misspelt unit": (["data.tokens=charakter"], 2, ["data.tokens", "character"]),
    # subwords
    "a missing tokenizer": ([SUBWORDS, "data.tokenizer=none.json"], 4, ["none.json"]),
    "a broken tokenizer": (
        [SUBWORDS, "data.tokenizer=broken.json"],
        4,
        ["broken.json", "not the JSON of a tokenizer"],
    ),
    "a tokenizer of another size": (
        [SUBWORDS, "data.tokenizer=tokenizer.json", "data.vocabulary=300"],
        2,
        ["data.vocabulary", "300", "tokenizer.json", "2"],
    ),
    "a tokenizer that lacks characters": (
        [SUBWORDS, "data.tokenizer=tokenizer.json"],
        4,
        ["letters.txt", "'g'"],
    ),
    "subwords of no size": ([SUBWORDS], 2, ["data.vocabulary", "256"]),
    "a size for characters": (["data.vocabulary=300"], 2, ["data.vocabulary", "characters"]),
    # encodings
    "dape alone": ([chain("dape")], 2, ["model.encoding", "[alibi, dape]"]),
    "dape after turned queries": ([chain("rope", "dape")], 2, ["model.encoding", "[alibi, dape]"]),
    "a bias after dape": (
        [chain("kerple", "dape", "alibi")],
        2,
        ["model.encoding", "alibi", "list it first"],
    ),
    "a bias after gates": (
        [chain("cope", "alibi", "dape")],
        2,
        ["model.encoding", "alibi", "list it first"],
    ),
    "two that rescore": (
        [chain("alibi", "cope", "dape")],
        2,
        ["model.encoding", "dape", "both write transform_scores"],
    ),
    "an encoding twice": ([chain("fox", "fox")], 2, ["model.encoding.1", "fox", "twice"]),
    "two rotations": ([chain("rope", "tape")], 2, ["model.encoding", "rope and tape"]),
    "places in fractions of a length": (
        [chain("comrope_ld")],
        2,
        ["model.encoding", "coordinates: index"],
    ),
    "an unknown rule": (
        ["model.encoding=[{name: rope, scaling: {rule: yarm, factor: 2}}]"],
        2,
        ["model.encoding.0.scaling.rule", "yarn"],
    ),
    "a factor that shrinks": (
        ["model.encoding=[{name: rope, scaling: {rule: ntk, factor: 0.5}}]"],
        2,
        ["model.encoding.0.scaling.factor", "0.5"],
    ),
    "an odd number of channels": (
        ["model.encoding=[{name: rope, rotary_fraction: 0.4}]"],
        2,
        ["model.encoding.0.rotary_fraction", "head dim 8"],
    ),
    "more weights than there are numbers": (
        ["model.dim=2000000000"],
        2,
        ["model", "exceeds any memory"],
    ),
    "more rows than a machine counts": (
        ["data.batch_size=99999999999999"],
        2,
        ["data.batch_size", "at most 2147483647"],
    ),
    "a rate past all weights": (["optim.lr=1e38"], 2, ["optim.lr", "1e+38"]),
    "buckets beyond their reach": (
        ["model.encoding=[{name: t5, max_distance: 8}]"],
        2,
        ["model.encoding.0.max_distance", "8"],
    ),
    "a bias of sums over keys": (
        [*LINEAR, chain("rope", "fox")],
        2,
        ["model.encoding", "fox changes low_rank_biases"],
    ),
    "a window of sums over keys": (
        [*LINEAR, "model.window=4"],
        2,
        ["model.window", "no layer has softmax attention"],
    ),
    "key heads that do not divide": (["model.kv_heads=3"], 2, ["model.kv_heads", "heads 2"]),
    "frames of shared heads": (
        ["model.kv_heads=1", chain("tape")],
        2,
        ["model.encoding.0", "leave kv_heads out"],
    ),
    # what does not go together
    "memory without streams": (
        ["model.memory_length=16"],
        2,
        ["model.memory_length", "data.streams"],
    ),
    "streams with a stride": (
        ["data.streams=true", "data.stride=4"],
        2,
        ["data.stride", "streams"],
    ),
    "streams at random": (
        ["data.streams=true", "data.windows=random"],
        2,
        ["data.windows", "contiguous"],
    ),
    "filling with a decoder": (["task=masked_lm"], 2, ["task.name", "encoder"]),
    "labels for a decoder": (["task=classification"], 2, ["task", "classification reads images"]),
    "resolutions of text": (
        ["evaluate.resolutions=[16]"],
        2,
        ["evaluate.resolutions", "text", "size"],
    ),
}
OTHERS = {
    "predicting with an encoder": ("mlm_t5", ["task=causal_lm"], ["task.name", "decoder"]),
    "gates in an encoder": ("mlm_t5", ["model.encoding=fox"], ["model.encoding", "fox", "causal"]),
    "a cut in half flip-flop": ("flipflop_rope", ["data.length=15"], ["data.length", "15", "16"]),
}


@pytest.fixture
def files(tmp_path):
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    language(tmp_path / "letters.txt")


@pytest.fixture
def check_refusal(zoo, tmp_path):
    """Runs a command that has to fail: this code, these words, at most six lines, and nothing written."""

    def run(code, expected, *arguments):
        before = sorted(tmp_path.rglob("*"))
        given, out, message = zoo(*arguments)
        assert (given, out) == (code, ""), message
        assert 1 <= len(message.strip().splitlines()) <= 6, message
        assert "Traceback" not in message
        for word in expected:
            assert word in message
        assert sorted(tmp_path.rglob("*")) == before

    return run


@pytest.mark.parametrize("case", RECIPES, ids=lambda case: case.replace(" ", "-"))
def test_a_wrong_recipe_of_text(case, files, check_refusal, tmp_path):
    overrides, code, expected = RECIPES[case]
    check_refusal(
        code,
        expected,
        "fit",
        "lm_rope",
        *language(tmp_path / "letters.txt"),
        "evaluate.lengths=null",
        *overrides,
    )


@pytest.mark.parametrize("case", OTHERS, ids=lambda case: case.replace(" ", "-"))
def test_a_wrong_recipe_of_another_model(case, check_refusal):
    recipe, overrides, expected = OTHERS[case]
    check_refusal(2, expected, "fit", recipe, *overrides)


def test_images_and_text_do_not_mix(check_refusal):
    check_refusal(
        2, ["task", "causal_lm reads text", "digits"], "fit", "vit_none", *TINY, "task=causal_lm"
    )
    check_refusal(
        2,
        ["evaluate.lengths", "digits", "length"],
        "fit",
        "vit_none",
        *TINY,
        "evaluate.lengths=[8]",
    )
    check_refusal(
        2,
        ["model", "decoder reads text", "digits"],
        "fit",
        "lm_rope",
        "data=digits",
        "evaluate.lengths=null",
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Tiny runs of text, of masked text and of images."""
    from training import fit

    folder = tmp_path_factory.mktemp("runs")
    given = language(folder / "letters.txt")
    fit("lm_learned", [*given, "evaluate.lengths=null"], folder / "text", "never")
    fit("mlm_t5", given, folder / "masked", "never")
    fit("vit_none", TINY, folder / "images", "never")
    return folder


PROMPTS = {
    "an unknown character": (["prompt=abc\u03b1"], ["generate.prompt", "'\u03b1' at position 3"]),
    "an empty prompt": (["prompt="], ["generate.prompt", "no text to continue"]),
    "the prompt of a recipe for another text": (
        ["tokens=3"],
        ["best.ckpt", "generate.prompt", "'T' at position 0"],
    ),
    "a prompt longer than the table": (
        ["prompt=" + LETTERS[:17].replace("\n", " ")],
        ["generate.prompt", "16 positions"],
    ),
    "no share": (["prompt=a", "top_p=0"], ["generate.top_p", "0"]),
    "more than all": (["prompt=a", "top_p=1.5"], ["generate.top_p", "1.5"]),
    "no tokens to choose from": (["prompt=a", "top_k=0"], ["generate.top_k", "0"]),
    "cold": (["prompt=a", "temperature=-1"], ["generate.temperature", "-1"]),
    "a temperature without end": (
        ["prompt=a", "temperature=.inf"],
        ["generate.temperature", "finite"],
    ),
    "no samples": (["prompt=a", "samples=0"], ["generate.samples", "0"]),
    "no length": (["prompt=a", "tokens=0"], ["generate.tokens", "0"]),
    "a misspelt option": (
        ["prompt=a", "temprature=1"],
        ["generate.temprature", "generate.temperature?"],
    ),
    "a word alone": (["abc"], ["'abc'", "key=value"]),
}


@pytest.mark.parametrize("case", PROMPTS, ids=lambda case: case.replace(" ", "-"))
def test_a_wrong_prompt_or_way_to_draw(case, runs, check_refusal):
    overrides, expected = PROMPTS[case]
    check_refusal(2, expected, "generate", runs / "text", *overrides)


def test_models_that_do_not_write(runs, check_refusal):
    check_refusal(
        2, ["model.name", "encoder", "a decoder does"], "generate", runs / "masked", "prompt=abc"
    )
    check_refusal(
        2, ["model.name", "vit", "a decoder does"], "generate", runs / "images", "prompt=abc"
    )
    check_refusal(5, ["nowhere"], "generate", "nowhere", "prompt=abc")
    check_refusal(5, ["another recipe"], "generate", runs / "text", "prompt=abc", "model.dim=32")


MEASURED = {
    "characters of another alphabet": (
        ["data.files=[greek.txt]"],
        4,
        ["greek.txt", "10 characters", "'\u03b1'"],
    ),
    "a missing text": (["data.files=[nowhere.txt]"], 4, ["nowhere.txt", "no such file"]),
    "more positions than the table has": (["data.length=32"], 2, ["data.length", "16 positions"]),
    "windows longer than the text": (["data.length=500"], 2, ["data.length", "501 tokens"]),
    "tokens of another kind": (["data=flipflop"], 2, ["data.name", "vocabulary"]),
    "images": (["data=digits"], 2, ["data", "digits"]),
    "resolutions": (["evaluate.resolutions=[16]"], 2, ["evaluate.resolutions", "size"]),
    "a length of nothing": (["evaluate.lengths=[0]"], 2, ["evaluate.lengths", "0"]),
}


@pytest.mark.parametrize("case", MEASURED, ids=lambda case: case.replace(" ", "-"))
def test_a_wrong_measurement(case, files, runs, check_refusal):
    overrides, code, expected = MEASURED[case]
    check_refusal(code, expected, "eval", runs / "text", *overrides)


def test_lengths_of_images(runs, check_refusal):
    check_refusal(
        2, ["evaluate.lengths", "digits", "length"], "eval", runs / "images", "evaluate.lengths=[8]"
    )
