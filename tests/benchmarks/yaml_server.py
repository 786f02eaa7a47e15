"""Have VS Code's YAML language server check recipes by the schema of `zoo show schema`.

    npm install --prefix /tmp/yaml yaml-language-server
    python tests/benchmarks/yaml_server.py /tmp/yaml/node_modules/.bin/yaml-language-server

Every shipped recipe must have no diagnostics, and a misspelt key one on its line.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
WRONG = """extends: vit_comrope
model:
  dim: 64
  depht: 4
trainer:
  max_epochs: 3
  loger: [tensorboard]
"""
SETTINGS = {"yaml": {"validate": True, "schemaStore": {"enable": False}}}


class Server:
    """A language server that is spoken to over its standard input and output."""

    def __init__(self, command: str) -> None:
        self.process = subprocess.Popen(
            [command, "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.send("initialize", {"processId": None, "rootUri": None, "capabilities": {}}, 1)
        while self.receive().get("id") != 1:
            pass
        self.send("initialized", {})
        self.send("workspace/didChangeConfiguration", {"settings": SETTINGS})

    def send(self, method: str, params: dict[str, Any], number: int | None = None) -> None:
        message = {"jsonrpc": "2.0", "method": method, "params": params}
        self.write(message | ({} if number is None else {"id": number}))

    def write(self, message: dict[str, Any]) -> None:
        body = json.dumps(message).encode()
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """Return the next message; answer what the server asks."""
        length = 0
        while line := self.process.stdout.readline().strip():
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        message: dict[str, Any] = json.loads(self.process.stdout.read(length))
        if "id" in message and "method" in message:
            items = message.get("params", {}).get("items", [])
            answer = [SETTINGS.get(one.get("section")) for one in items]
            self.write({"jsonrpc": "2.0", "id": message["id"], "result": answer})
        return message

    def check(self, path: Path, text: str) -> list[tuple[int, str]]:
        """Return line (from 1) and message of each diagnostic of a file."""
        uri = path.as_uri()
        document = {"uri": uri, "languageId": "yaml", "version": 1, "text": text}
        self.send("textDocument/didOpen", {"textDocument": document})
        while True:
            message = self.receive()
            if message.get("method") != "textDocument/publishDiagnostics":
                continue
            if message["params"]["uri"] == uri:
                found = message["params"]["diagnostics"]
                return [(one["range"]["start"]["line"] + 1, one["message"]) for one in found]


def main(command: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        schema = Path(folder, "recipe.schema.json")
        schema.write_bytes(subprocess.check_output([sys.executable, "-m", "zoo", "show", "schema"]))
        line = f"# yaml-language-server: $schema={schema.as_uri()}\n"
        server = Server(command)

        found = server.check(Path(folder, "wrong.yaml"), line + WRONG)
        for number, message in found:
            print(f"wrong.yaml:{number}: {message}")
        assert [number for number, _ in found] == [5, 8], found

        paths = sorted((ROOT / "recipes").glob("*.yaml"))
        for path in paths:
            found = server.check(Path(folder, path.name), line + path.read_text())
            assert not found, (path, found)
        print(f"no diagnostics in {len(paths)} shipped recipes")
        server.process.kill()


if __name__ == "__main__":
    from arguments import make_parser

    parser = make_parser(__doc__)
    parser.add_argument("server", help="the command of the language server")
    main(parser.parse_args().server)
