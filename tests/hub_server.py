"""A hub on loopback: the parts of the Hugging Face hub's HTTP protocol that the unmodified `huggingface_hub` client uses
to create a repository, upload files (git LFS and commits) and download them again. One token is good; uploads can be
cut in the middle.

    with Hub() as hub: ... HF_ENDPOINT=hub.url HF_TOKEN=hub.token
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.server
import json
import threading
import time
import urllib.parse
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Repository:
    """`branches`: the files of each; `commits`: those of all branches in order; `snapshots`: the files of a commit."""

    private: bool
    branches: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"main": {}})
    commits: list[str] = field(default_factory=lambda: ["0" * 40])
    heads: dict[str, str] = field(default_factory=lambda: {"main": "0" * 40})
    snapshots: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"0" * 40: {}})

    @property
    def files(self) -> dict[str, bytes]:
        return self.branches["main"]

    def at(self, revision: str) -> dict[str, bytes] | None:
        """The files of a branch or commit; None where there is no such thing."""
        return self.branches.get(revision, self.snapshots.get(revision))


class Hub:
    """`repositories`: by (kind, name), kind "models" or "datasets". `puts`: LFS objects that were sent, by oid, as often
    as they were. `cut_after`: so many PUTs are answered, the next one's connection is cut. `port`: 0 takes a free one; a hub
    that died comes back on the same one with `objects` and `repositories` of the dead one."""

    token = "hf_" + "good" * 9

    def __init__(self, taken: tuple[str, ...] = (), port: int = 0) -> None:
        self.repositories: dict[tuple[str, str], Repository] = {}
        self.objects: dict[str, bytes] = {}
        self.puts: list[str] = []
        self.cut_after: int | None = None
        self.hold_after: int | None = None  # so many PUTs are answered, the next ones never
        self.lock = threading.Lock()
        self.taken = set(taken)  # names of other people's
        hub = self

        class Handler(_Handler):
            pass

        Handler.hub = hub
        self._server = _Server(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Hub:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._server.shutdown()
        self._server.server_close()

    def environment(self, home: Any, token: str | None = None) -> dict[str, str]:
        """What a client process needs to use this hub and nothing else."""
        return {"HF_ENDPOINT": self.url, "HF_TOKEN": self.token if token is None else token, "HF_HOME": str(home),
                "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0"}  # fmt: skip


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """A client that goes away is nothing to report."""


class _Handler(http.server.BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def answer(
        self, code: int, value: Any = None, headers: dict[str, str] | None = None, body: bytes | None = None
    ) -> None:
        body = json.dumps(value).encode() if body is None else body
        self.send_response(code)
        for name, text in {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **(headers or {}),
        }.items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, code: int, why: str, kind: str = "") -> None:
        self.answer(code, {"error": why}, {"X-Error-Message": why, **({"X-Error-Code": kind} if kind else {})})

    def payload(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def known(self) -> bool:
        if self.headers.get("Authorization") == f"Bearer {self.hub.token}":
            return True
        self.refuse(401, "Invalid username or password.")
        return False

    def do_POST(self) -> None:  # noqa: N802  the library's name
        path, body = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path), self.payload()
        if path == "/api/validate-yaml":
            return self.answer(200, {"errors": [], "warnings": []})
        if not self.known():
            return None
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked.get('organization') or 'me'}/{asked['name']}"
            kind = f"{asked.get('type') or 'model'}s"
            if name.split("/")[0] in self.hub.taken or name in self.hub.taken:
                return self.refuse(
                    403, f"You don't have the rights to create a {kind[:-1]} under this namespace: {name}"
                )
            if (kind, name) in self.hub.repositories:
                return self.answer(
                    409, {"error": "You already created this repo", "url": f"{self.hub.url}/{kind}/{name}"}
                )
            self.hub.repositories[kind, name] = Repository(
                private=bool(asked.get("private")) or asked.get("visibility") == "private"
            )
            return self.answer(200, {"url": f"{self.hub.url}/{kind}/{name}", "name": name, "id": name})
        if path.endswith(".git/info/lfs/objects/batch"):
            objects = [o if o["oid"] in self.hub.objects else  # there already: nothing to do
                       {**o, "actions": {"upload": {"href": f"{self.hub.url}/lfs/{o['oid']}"}}}
                       for o in json.loads(body)["objects"]]  # fmt: skip
            return self.answer(200, {"transfer": "basic", "objects": objects})
        kind, name, verb = self.place(path)
        repository = self.hub.repositories.get((kind, name))
        if repository is None:
            return self.refuse(404, "Repository not found", "RepoNotFound")
        if verb.startswith("branch/"):
            branch, start = verb.partition("/")[2], json.loads(body or b"{}").get("startingPoint") or "main"
            if branch in repository.branches:
                return self.refuse(409, "Reference already exists")
            repository.branches[branch] = dict(repository.at(start) or {})
            repository.heads[branch] = repository.heads.get(start, start)
            return self.answer(200, {})
        if verb.partition("/")[0] in ("preupload", "commit") and verb.partition("/")[2] not in repository.branches:
            return self.refuse(404, f"Invalid rev id: {verb.partition('/')[2]}", "RevisionNotFound")
        if verb.startswith("preupload"):
            files = [{"path": f["path"], "uploadMode": "lfs" if f["path"].endswith((".parquet", ".safetensors", ".png"))
                      else "regular", "shouldIgnore": False, "oid": None} for f in json.loads(body)["files"]]  # fmt: skip
            return self.answer(200, {"files": files})
        if verb.startswith("commit"):
            branch = verb.partition("/")[2]
            new = dict(repository.branches[branch])
            for line in filter(None, body.decode().split("\n")):
                entry = json.loads(line)
                value = entry["value"]
                if entry["key"] == "file":
                    new[value["path"]] = base64.b64decode(value["content"])
                elif entry["key"] == "lfsFile":
                    if value["oid"] not in self.hub.objects:
                        return self.refuse(400, "LFS object is missing")
                    new[value["path"]] = self.hub.objects[value["oid"]]
                elif entry["key"] == "deletedFile":
                    new.pop(value["path"], None)
            repository.branches[branch] = new
            repository.commits.append(hashlib.sha1(body + str(len(repository.commits)).encode()).hexdigest())
            repository.heads[branch], repository.snapshots[repository.commits[-1]] = repository.commits[-1], new
            return self.answer(200, {"commitUrl": f"{self.hub.url}/{name}/commit/{repository.commits[-1]}",
                                     "commitOid": repository.commits[-1], "success": True})  # fmt: skip
        if verb.startswith("paths-info"):
            wanted = (
                urllib.parse.parse_qs(body.decode()).get("paths", [])
                if not body.startswith(b"{")
                else json.loads(body)["paths"]
            )
            files = repository.at(verb.partition("/")[2]) or {}
            return self.answer(200, [self.entry(files, p) for p in wanted if p in files])
        return self.refuse(404, "no such address")

    def do_PUT(self) -> None:  # noqa: N802
        with self.hub.lock:  # one at a time, so that the tests' counts are exact
            held = self.hub.hold_after is not None and len(self.hub.puts) >= self.hub.hold_after
            if not held:
                self.put()
        if held:
            time.sleep(60)

    def put(self) -> None:
        oid = self.path.rsplit("/", 1)[1]
        if self.hub.cut_after is not None and len(self.hub.puts) >= self.hub.cut_after:
            self.rfile.read(10)
            with contextlib.suppress(OSError):
                self.connection.close()
            return None
        body = self.payload()
        if hashlib.sha256(body).hexdigest() != oid:
            return self.refuse(400, "content and oid differ")
        self.hub.objects[oid] = body
        self.hub.puts.append(oid)
        return self.answer(200, {})

    def do_HEAD(self) -> None:  # noqa: N802
        self.do_GET()

    def do_GET(self) -> None:  # noqa: N802
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        if path.startswith("/api/whoami"):
            return self.answer(200, {"name": "me", "type": "user", "orgs": []}) if self.known() else None
        if "/resolve/" in path:
            head, _, rest = path.lstrip("/").partition("/resolve/")
            kind, name = ("datasets", head[9:]) if head.startswith("datasets/") else ("models", head)
            repository, (revision, file) = self.hub.repositories.get((kind, name)), rest.split("/", 1)
            if repository is None or (repository.private and not self.known()):
                return self.refuse(404, "Repository not found", "RepoNotFound") if repository is None else None
            files = repository.at(revision)
            if files is None:
                return self.refuse(404, f"Invalid rev id: {revision}", "RevisionNotFound")
            head = repository.heads.get(revision, revision)
            if file not in files:
                why = {"error": "Entry not found"}
                return self.answer(404, why, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": head})
            body = files[file]
            return self.answer(200, body=body, headers={
                "ETag": f'"{hashlib.sha256(body).hexdigest()}"', "X-Repo-Commit": head,
                "Content-Type": "application/octet-stream", "Accept-Ranges": "none"})  # fmt: skip
        kind, name, verb = self.place(path)
        repository = self.hub.repositories.get((kind, name))
        if repository is None:
            return self.refuse(404, "Repository not found", "RepoNotFound")
        if repository.private and not self.known():
            return None
        parts = verb.split("/")
        revision = parts[1] if len(parts) > 1 and parts[0] in ("tree", "revision") else "main"
        files = repository.at(revision)
        if files is None:
            return self.refuse(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        if parts[0] == "tree":
            inside = "/".join(parts[2:]).rstrip("/") + "/" if len(parts) > 2 and parts[2] else ""
            return self.answer(200, [self.entry(files, p) for p in sorted(files) if p.startswith(inside)])
        return self.answer(200, {"id": name, "sha": repository.heads.get(revision, revision), "private": repository.private,
                                 "tags": [], "downloads": 0, "likes": 0,
                                 "siblings": [{"rfilename": p} for p in sorted(files)]})  # fmt: skip

    def place(self, path: str) -> tuple[str, str, str]:
        """(kind, name, what comes after it) of /api/KIND/ORG/NAME/…"""
        parts = path.split("/")
        return (parts[2], "/".join(parts[3:5]), "/".join(parts[5:])) if len(parts) >= 5 else ("", "", "")

    def entry(self, files: dict[str, bytes], path: str) -> dict[str, Any]:
        body = files[path]
        return {"type": "file", "path": path, "size": len(body), "oid": hashlib.sha1(body).hexdigest()}
