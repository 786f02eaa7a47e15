"""Load exported folders in a process of its own, which imports transformers first: python reading.py FOLDER.

Each folder below has `expected.pt`: what zoo computes for some inputs. Prints one line per fault.
"""

import sys
import warnings
from pathlib import Path

import torch
import transformers

CLOSE = {"atol": 1e-5, "rtol": 1e-5}
ANSWERS = {"do_sample": False, "max_new_tokens": 6, "eos_token_id": None, "pad_token_id": 0}


def compare(name, found, right):
    if found.shape != right.shape or not torch.allclose(found, right, **CLOSE):
        gap = "shape" if found.shape != right.shape else f"{(found - right).abs().max():.1e}"
        print(f"{name}: {gap}")


def generates(name, model, ids):
    """Whatever is cached, it is one pass; padding on the left changes nothing."""
    first = model(ids[:, :5], use_cache=True)
    rest = model(ids[:, 5:], cache=first.cache)
    compare(f"{name} cached", torch.cat([first.logits, rest.logits], 1), model(ids).logits)
    for beams in (1, 3):
        with_cache, without = (
            model.generate(ids, num_beams=beams, use_cache=use, **ANSWERS) for use in (True, False)
        )
        if not torch.equal(with_cache, without):
            print(f"{name}: other answers of {beams} beams")
    mask = torch.nn.functional.pad(torch.ones_like(ids), (3, 0))
    padded = torch.nn.functional.pad(ids, (3, 0), value=model.config.vocab_size)
    compare(f"{name} padded", model(padded, mask).logits[:, 3:], model(ids).logits)


def main(folder):
    count = 0
    for path in sorted(folder.glob("*/out/expected.pt")):
        expected = torch.load(path)
        auto = getattr(transformers, expected["auto"])
        name = path.parent.parent.name
        model = auto.from_pretrained(path.parent, trust_remote_code=True).eval()
        with torch.no_grad():
            for inputs, right in zip(expected["inputs"], expected["logits"], strict=True):
                found, mask = model(**inputs).logits, inputs.get("attention_mask")
                if mask is not None and found.dim() == 3:
                    found, right = found[mask.bool()], right[mask.bool()]
                compare(name, found, right)
            if model.can_generate():
                generates(name, model, expected["inputs"][0]["input_ids"])
        count += 1
    print(f"{count} folders")


if __name__ == "__main__":
    warnings.simplefilter("error")
    main(Path(sys.argv[1]))
