"""`zoo audit` on servers: planted faults, what is not offered, and servers that do not answer."""

import json

import planted_server
import pytest
from planted_server import serving

import zoo
from zoo.auditing.completions import CHOSEN, CompletionServer
from zoo.auditing.server_laws import SERVER_LAWS
from zoo.cli import main

BREAKS = {
    "prefix": {"prefix"},
    "batch": {"batch"},
    "chunk": {"cache", "chunk", "prefix", "reference"},
    "cache": {"cache", "chunk", "prefix"},
    "precision": {"reference"},
    "scale": {"reference"},
}
"""{fault: laws that it breaks}"""


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server") / "reference"
    planted_server.save_reference(folder)
    return folder


def test_a_sound_server_keeps_all_laws(reference):
    with serving() as (url, requests):
        report = zoo.audit(url, model="tiny", reference=reference)
    assert [result.status for result in report.results] == ["kept"] * len(SERVER_LAWS), str(report)
    # Nothing is sent but prompts of random words and what is asked of them.
    fields = {"model", "prompt", "max_tokens", "temperature", "logprobs", "echo"}
    headers = {
        "Host",
        "Content-Type",
        "Content-Length",
        "Accept-Encoding",
        "Connection",
        "User-Agent",
    }
    assert all(set(body) <= fields and set(sent) <= headers for sent, body in requests)


@pytest.mark.parametrize("fault", planted_server.FAULTS)
def test_planted_faults_are_found(fault, reference):
    with serving(fault) as (url, _):
        report = zoo.audit(url, reference=reference)
    assert {result.law for result in report.broken} == BREAKS[fault], str(report)
    if fault == "precision":
        assert "computes in bfloat16, the reference in float32" in str(report)


def test_what_a_server_does_not_offer_is_not_asked():
    with serving(echo=False) as (url, _):
        report = zoo.audit(url)
    status = {result.law: result.status for result in report.results}
    assert status.pop("future") == status.pop("reference") == "not asked"
    assert set(status.values()) == {"kept"}, str(report)
    assert "echo with logprobs" in str(report)


def test_a_limited_rate_is_waited_for():
    with serving(refuses=(429, 503)) as (url, requests):
        assert zoo.audit(url, laws=["future"]).is_sound
    assert requests[0][1] == requests[2][1]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["{url}", "model=tinny"], 2, "did you mean tiny"),
        (["{url}", "laws=[shift]"], 2, "no law 'shift' of servers"),
        (["{url}", "size=small"], 2, "only a folder has a size"),
        (["{url}", "reference=nowhere"], 2, "no such folder"),
        (["{url}/more", "model=tiny"], 2, "no completions interface for model 'tiny'"),
        (["http://127.0.0.1:9/v1"], 4, "cannot be reached"),
        (["nowhere", "model=tiny"], 2, "only a server has it"),
    ],
)
def test_wrong_words_name_the_remedy(words, code, message, capsys):
    with serving() as (url, _):
        assert main(["audit", *(word.format(url=url) for word in words)]) == code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "word", "message"),
    [
        ({"logprobs": False}, "timeout=60", "gives no log-probabilities"),
        ({"delay": 1.0}, "timeout=0.2", "no answer within 0.2 seconds"),
        ({"refuses": (429,) * 9}, "timeout=60", "limits the rate of requests"),
        ({"refuses": (401,)}, "timeout=60", "asks for a key"),
    ],
)
def test_servers_that_give_no_numbers_end_with_4(options, word, message, capsys):
    with serving(**options) as (url, _):
        assert main(["audit", url, word]) == 4
    assert message in capsys.readouterr().err


def test_a_broken_law_of_a_server_ends_with_1(capsys):
    with serving("cache") as (url, _):
        assert main(["audit", url, "laws=[cache]", "--json"]) == 1
    (result,) = json.loads(capsys.readouterr().out)["results"]
    assert result["status"] == "broken"
    assert result["since"] is not None


def test_scores_may_come_as_those_of_a_chat_interface():
    # llama.cpp answers so, and scores no prompts.
    top = {"token": " a", "logprob": -0.5, "top_logprobs": [{"token": " a", "logprob": -0.5}]}
    choice = {"text": " a", "logprobs": {"content": [top]}}
    answer = {"choices": [choice], "usage": {"prompt_tokens": 7}}
    completion = CompletionServer("http://127.0.0.1:9/v1", "tiny")._read(answer, 0, 1, echo=False)
    assert completion.tokens == (" a",)
    assert completion.reading == {7: {CHOSEN: -0.5, " a": -0.5}}
