"""A hub of models on this machine, with the answers that huggingface_hub asks for."""

import hashlib
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from json import dumps
from pathlib import Path
from urllib.parse import unquote, urlsplit


@contextmanager
def serve_hub(repository, commits, refs):
    """Serve one repository; yields the address and the list of all requests.

    Args:
        repository: owner/name.
        commits: {commit: {path in the repository: file of this machine}}.
        refs: {branch or tag: commit}; the caller may change it.
    """
    requests = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def answer(self, code, content=b"", headers=()):
            self.send_response(code)
            for name, value in {"Content-Length": len(content), **dict(headers)}.items():
                self.send_header(name, str(value))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def answer_json(self, value):
            self.answer(200, dumps(value).encode(), {"Content-Type": "application/json"})

        def do_GET(self):
            path = unquote(urlsplit(self.path).path)
            requests.append((self.command, path))
            info, tree = f"/api/models/{repository}/revision/", f"/api/models/{repository}/tree/"
            resolve = f"/{repository}/resolve/"
            if path.startswith(info):
                revision = path.removeprefix(info)
                commit = refs.get(revision, revision)
                if commit in commits:
                    self.answer_json({"id": repository, "sha": commit})
                else:
                    self.answer(404, headers={"X-Error-Code": "RevisionNotFound"})
            elif path.startswith(tree):
                files = commits[path.removeprefix(tree)]
                self.answer_json([describe(name, file) for name, file in files.items()])
            elif path.startswith(resolve):
                commit, _, name = path.removeprefix(resolve).partition("/")
                file = commits[commit][name]
                headers = {"ETag": f'"{digest(file)}"', "X-Repo-Commit": commit}
                self.answer(200, file.read_bytes(), headers)
            else:
                self.answer(404, headers={"X-Error-Code": "RepoNotFound"})

        do_HEAD = do_GET  # noqa: N815

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def describe(name: str, file: Path):
    """Return the entry of a file in the listing of a tree."""
    return {"type": "file", "path": name, "size": file.stat().st_size, "oid": digest(file)}


def digest(file: Path) -> str:
    return hashlib.sha1(file.read_bytes()).hexdigest()
