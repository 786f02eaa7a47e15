"""How many tokens one core encodes, and reads again once they are in the cache.

    python tests/benchmarks/tokenizing.py [rounds] [to]

Rows of 4,000 characters from the standard library of Python, in a Parquet file, and a byte-level BPE of
32,768 tokens that is trained on them. Seconds are those of the processor, on one thread.
"""

import json
import os
import platform
import statistics
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow
import pyarrow.parquet
import tokenizers

from zoo.data.corpus.encoded_rows import EncodedRows
from zoo.data.corpus.tokenizer import train_bpe
from zoo.data.corpus.windows import Cursor, Packing
from zoo.data.python_docs import read_library
from zoo.data.tables.open_table import open_tables, select_text
from zoo.version import __version__

SIZE, COUNT, VOCABULARY, LENGTH = 4_000, 2_000, 32_768, 1_024


def make_rows():
    text = "".join(document.text for document in read_library())
    return [text[at : at + SIZE] for at in range(0, len(text), SIZE)][:COUNT]


def measure(act):
    """Return the number of tokens that `act` returns, per second."""
    start = time.process_time()
    count = act()
    return count / (time.process_time() - start)


def main(rounds, to):
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    texts = make_rows()
    vocabulary = train_bpe(texts, VOCABULARY)
    vocabulary.encode_array("")  # which builds the tokenizer
    found = {"encoded": [], "read_again": []}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        path = Path(folder, "rows", "train-0.parquet")
        path.parent.mkdir()
        pyarrow.parquet.write_table(pyarrow.table({"text": texts}), path)
        table = select_text(open_tables(str(path.parent), streaming=True), "train", "text", "rows")
        rows = EncodedRows(vocabulary, "\n\n", "rows")

        def encode():
            return sum(len(vocabulary.encode_array(text)) for text in texts)

        def read_again():
            packing = Packing(lambda number, tokens: tokens, LENGTH, keep_rest=False)
            return LENGTH * sum(1 for _ in packing.pack(rows.read(table), Cursor()))

        read_again()
        for _ in range(rounds):
            found["encoded"].append(measure(encode))
            found["read_again"].append(measure(read_again))
    result = {
        "zoo_version": __version__,
        "created": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "command": f"python tests/benchmarks/tokenizing.py {rounds} {to}".strip(),
        "machine": {
            "platform": platform.platform(),
            "python": platform.python_version(),
            "tokenizers": tokenizers.__version__,
            "threads": 1,
        },
        "tokens_per_second": {
            name: {"median": statistics.median(values), "values": values}
            for name, values in found.items()
        },
    }
    text = json.dumps(result, indent=1)
    print(text)
    if to:
        Path(to).write_text(text + "\n")


if __name__ == "__main__":
    from arguments import make_parser, positive

    parser = make_parser(__doc__)
    parser.add_argument("rounds", nargs="?", type=positive, default=5)
    parser.add_argument("to", nargs="?", default="")
    known = parser.parse_args()
    main(known.rounds, known.to)
