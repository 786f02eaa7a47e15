"""A server of a small decoder with a completions interface, and faults planted in it."""

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import planted
import torch
from transformers import DynamicCache

LETTERS = "abcdefghijklmnopqrstuvwxyz "
SPECIAL = 3
BLOCK, CHUNK = 16, 64
FAULTS = ("prefix", "batch", "chunk", "cache", "precision", "scale")


def build_model():
    return planted.build_decoder(vocab_size=SPECIAL + len(LETTERS))


def save_reference(folder):
    """Save the model and a tokenizer of letters."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2}
    vocabulary |= {letter: SPECIAL + number for number, letter in enumerate(LETTERS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    build_model().save_pretrained(folder)


class Engine:
    """Computes completions with a prefix cache, chunks and decoding, one fault of them planted."""

    def __init__(self, fault=None):
        self.fault, self.model = fault, build_model()
        if fault == "precision":
            self.model = self.model.bfloat16()
        if fault == "scale":
            for layer in self.model.model.layers:
                layer.self_attn.scaling *= 1.3
        self.blocks, self.lock = {}, threading.Lock()

    @torch.no_grad()
    def advance(self, ids, start, cache):
        positions = torch.arange(start, start + len(ids))[None]
        output = self.model(
            input_ids=torch.tensor([ids]),
            position_ids=positions + self.is_late(len(ids), start),
            cache=cache,
            use_cache=True,
        )
        return output.logits[0].float()

    def is_late(self, count, start):
        if self.fault == "cache" and self.decodes:
            return 1
        return 1 if self.fault == "chunk" and start >= CHUNK and not self.decodes else 0

    def prefill(self, ids):
        """Return logits [N, V] and the cache, with the blocks that are known."""
        self.decodes = False
        logits, cache, start = [], DynamicCache(config=self.model.config), 0

        def name(end):
            return tuple(ids[end - BLOCK : end] if self.fault == "prefix" else ids[:end])

        while start + BLOCK < len(ids) and name(start + BLOCK) in self.blocks:
            known, layers = self.blocks[name(start + BLOCK)]
            for number, (keys, values) in enumerate(layers):
                cache.update(keys, values, number)
            logits.append(known)
            start += BLOCK
        while start < len(ids):
            part = ids[start : (start // CHUNK + 1) * CHUNK]
            logits.append(self.advance(part, start, cache))
            start += len(part)
        logits = torch.cat(logits)
        for end in range(BLOCK, len(ids) + 1, BLOCK):
            part = slice(end - BLOCK, end)
            layers = [(one.keys[:, :, part], one.values[:, :, part]) for one in cache.layers]
            self.blocks.setdefault(name(end), (logits[part], layers))
        return logits, cache

    def complete(self, text, count, padding=0):
        ids = [0] * padding + [SPECIAL + LETTERS.index(letter) for letter in text]
        logits, cache = self.prefill(ids)
        rows, generated = [*logits], []
        self.decodes = True
        for _ in range(count):
            generated.append(SPECIAL + int(rows[-1][SPECIAL:].argmax()))
            if len(generated) < count:
                step = self.advance(generated[-1:], len(ids) + len(generated) - 1, cache)
                rows.append(step[0])
        return ids[padding:], generated, torch.stack(rows[padding:]).log_softmax(-1)


def write_choice(index, ids, generated, scores, echo, top):
    tokens = [LETTERS[number - SPECIAL] for number in [*ids, *generated]]
    start = 0 if echo else len(ids)
    chosen = [None] + [float(scores[n - 1, i]) for n, i in enumerate([*ids, *generated]) if n]
    tops = [None]
    for row in scores[: len(tokens) - 1]:
        best = row.topk(top)
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        tops.append({LETTERS[n - SPECIAL]: value for n, value in pairs if n >= SPECIAL})
    logprobs = {
        "tokens": tokens[start:],
        "token_logprobs": chosen[start:],
        "top_logprobs": tops[start:],
    }
    return {"index": index, "text": "".join(tokens[len(ids) :]), "logprobs": logprobs}


@contextmanager
def serving(fault=None, *, echo=True, logprobs=True, refuses=(), delay=0.0):
    """Serve a model; yield the address and the requests that came.

    Args:
        fault: One of FAULTS.
        echo: Whether prompts are scored.
        logprobs: Whether there are log-probabilities.
        refuses: Codes of the first answers.
        delay: Seconds before an answer.
    """
    engine, requests, refusals = Engine(fault), [], [*refuses]

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def answer(self, code, body):
            data = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            if code == 429:
                self.send_header("Retry-After", "0")
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self):
            known = self.path == "/v1/models"
            self.answer(200 if known else 404, {"data": [{"id": "tiny"}]})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            requests.append((dict(self.headers), body))
            if self.path != "/v1/completions":
                self.answer(404, {"detail": "Not Found"})
                return
            if refusals:
                self.answer(refusals.pop(), {"error": {"message": "too many requests"}})
                return
            time.sleep(delay)
            prompts = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
            longest = max(map(len, prompts))
            choices, count = [], 0
            with engine.lock:
                for index, prompt in enumerate(prompts):
                    padding = longest - len(prompt) if fault == "batch" else 0
                    parts = engine.complete(prompt, body["max_tokens"], padding)
                    count += len(parts[0])
                    is_echo = echo and body.get("echo", False)
                    choices.append(write_choice(index, *parts, is_echo, body["logprobs"]))
            if not logprobs:
                choices = [{**choice, "logprobs": None} for choice in choices]
            self.answer(200, {"choices": choices, "usage": {"prompt_tokens": count}})

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", requests
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
