"""A stand-in for the Hugging Face Hub: the part of its HTTP API by which huggingface_hub uploads and downloads a model.

Large files go by Git LFS (batch, upload, verify), small ones inside the commit. A repository is its last commit.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_stand_in"
LARGE = ("safetensors", "parquet")  # what the Hub's own .gitattributes sends by LFS


@dataclass
class Repository:
    private: bool
    files: dict[str, bytes] = field(default_factory=dict)
    commits: list[str] = field(default_factory=list)  # their messages
    large: set[str] = field(default_factory=set)  # paths that came by LFS

    @property
    def sha(self) -> str:
        return hashlib.sha1(repr(self.commits).encode()).hexdigest()


class Hub(ThreadingHTTPServer):
    """The server: repositories by their names, and LFS objects by their SHA-256."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[str, Repository] = {}
        self.objects: dict[str, bytes] = {}
        self.verified: set[str] = set()
        self.requests: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def hub() -> Iterator[Hub]:
    """A Hub that runs inside the block."""
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        pass

    def answer(self, value: object = None, status: int = 200, headers: dict[str, str] | None = None) -> None:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status: int, code: str) -> None:
        self.answer({"error": code}, status, {"X-Error-Code": code, "X-Error-Message": code})

    def handle_request(self) -> None:
        path = unquote(urlsplit(self.path).path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append(f"{self.command} {path}")
        if self.headers.get("Authorization") != f"Bearer {TOKEN}" and not path.startswith("/objects/"):
            self.refuse(401, "RepoNotFound")
            return
        for pattern, method in ROUTES.items():
            if found := re.fullmatch(pattern, f"{self.command} {path}"):
                getattr(self, method)(body, *found.groups())
                return
        self.refuse(404, "EntryNotFound")

    do_GET = do_HEAD = do_POST = do_PUT = handle_request

    # -- repositories ---------------------------------------------------------------------------------------------

    def create(self, body: bytes) -> None:
        asked = json.loads(body)
        name = f"{asked['organization']}/{asked['name']}"
        if name in self.server.repositories:
            address = f"{self.server.address}/{name}"
            self.answer({"error": "You already created this model repo", "url": address}, 409)
            return
        private = asked.get("visibility") == "private" or bool(asked.get("private"))
        self.server.repositories[name] = Repository(private)
        self.answer({"url": f"{self.server.address}/{name}", "name": name})

    def repository(self, name: str) -> Repository | None:
        found = self.server.repositories.get(name)
        if found is None:
            self.refuse(404, "RepoNotFound")
        return found

    def information(self, body: bytes, name: str, revision: str | None = None) -> None:
        if found := self.repository(name):
            if revision not in (None, "main", found.sha):
                self.refuse(404, "RevisionNotFound")
                return
            siblings = [{"rfilename": path} for path in found.files]
            self.answer({"_id": "1", "id": name, "sha": found.sha, "private": found.private, "siblings": siblings})

    def tree(self, body: bytes, name: str, revision: str) -> None:
        if found := self.repository(name):
            self.answer([self._entry(found, path) for path in sorted(found.files)])

    def _entry(self, found: Repository, path: str) -> dict[str, Any]:
        content = found.files[path]
        entry: dict[str, Any] = {"type": "file", "path": path, "size": len(content), "oid": _blob(content)}
        if path in found.large:
            entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
        return entry

    def validate(self, body: bytes) -> None:
        self.answer({"errors": [], "warnings": []})

    # -- uploading ------------------------------------------------------------------------------------------------

    def preupload(self, body: bytes, name: str, revision: str) -> None:
        if self.repository(name):
            modes = {
                each["path"]: "lfs" if each["path"].endswith(LARGE) else "regular" for each in json.loads(body)["files"]
            }
            self.answer(
                {"files": [{"path": p, "uploadMode": mode, "shouldIgnore": False} for p, mode in modes.items()]}
            )

    def batch(self, body: bytes, name: str) -> None:
        objects = []
        for each in json.loads(body)["objects"]:
            place = f"{self.server.address}/objects/{each['oid']}"
            actions = {"upload": {"href": place}, "verify": {"href": f"{self.server.address}/verify/{each['oid']}"}}
            objects.append({**each, "authenticated": True, "actions": actions})
        self.answer({"transfer": "basic", "objects": objects})

    def store(self, body: bytes, oid: str) -> None:
        assert hashlib.sha256(body).hexdigest() == oid
        self.server.objects[oid] = body
        self.answer({})

    def verify(self, body: bytes, oid: str) -> None:
        assert len(self.server.objects[oid]) == json.loads(body)["size"]
        self.server.verified.add(oid)
        self.answer({})

    def commit(self, body: bytes, name: str, revision: str) -> None:
        found = self.repository(name)
        if not found:
            return
        for line in map(json.loads, body.splitlines()):
            kind, value = line["key"], line["value"]
            if kind == "header":
                found.commits.append(value["summary"])
            elif kind == "file":
                found.files[value["path"]] = base64.b64decode(value["content"])
            elif kind == "lfsFile":
                assert value["oid"] in self.server.verified
                found.files[value["path"]] = self.server.objects[value["oid"]]
                found.large.add(value["path"])
            elif kind == "deletedFile":
                del found.files[value["path"]]
        address = f"{self.server.address}/{name}/commit/{found.sha}"
        self.answer({"success": True, "commitUrl": address, "commitOid": found.sha})

    # -- downloading ----------------------------------------------------------------------------------------------

    def resolve(self, body: bytes, name: str, revision: str, path: str) -> None:
        found = self.repository(name)
        if not found:
            return
        if path not in found.files:
            self.refuse(404, "EntryNotFound")
            return
        content = found.files[path]
        tag = hashlib.sha256(content).hexdigest() if path in found.large else _blob(content)
        self.answer(content, headers={"X-Repo-Commit": found.sha, "ETag": f'"{tag}"'})


def _blob(content: bytes) -> str:
    """The SHA-1 that Git has for a file."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


NAME, REVISION = r"([\w.-]+/[\w.-]+)", r"([\w.-]+)"
ROUTES = {
    "POST /api/repos/create": "create",
    "POST /api/validate-yaml": "validate",
    f"GET /api/models/{NAME}": "information",
    f"GET /api/models/{NAME}/revision/{REVISION}": "information",
    f"GET /api/models/{NAME}/tree/{REVISION}": "tree",
    f"POST /api/models/{NAME}/preupload/{REVISION}": "preupload",
    f"POST /api/models/{NAME}/commit/{REVISION}": "commit",
    rf"POST /{NAME}\.git/info/lfs/objects/batch": "batch",
    "PUT /objects/(.+)": "store",
    "POST /verify/(.+)": "verify",
    f"(?:GET|HEAD) /{NAME}/resolve/{REVISION}/(.+)": "resolve",
}
