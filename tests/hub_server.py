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
import urllib.parse
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Repository:
    private: bool
    files: dict[str, bytes] = field(default_factory=dict)
    commits: list[str] = field(default_factory=lambda: ["0" * 40])


class Hub:
    """`repositories`: by (kind, name), kind "models" or "datasets". `puts`: LFS objects that were sent, by oid, as often
    as they were. `cut_after`: so many PUTs are answered, the next one's connection is cut."""

    token = "hf_" + "good" * 9

    def __init__(self, taken: tuple[str, ...] = ()) -> None:
        self.repositories: dict[tuple[str, str], Repository] = {}
        self.objects: dict[str, bytes] = {}
        self.puts: list[str] = []
        self.cut_after: int | None = None
        self.taken = set(taken)  # names of other people's
        hub = self

        class Handler(_Handler):
            pass

        Handler.hub = hub
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
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
        if verb.startswith("preupload"):
            files = [{"path": f["path"], "uploadMode": "lfs" if f["path"].endswith((".parquet", ".safetensors", ".png"))
                      else "regular", "shouldIgnore": False, "oid": None} for f in json.loads(body)["files"]]  # fmt: skip
            return self.answer(200, {"files": files})
        if verb.startswith("commit"):
            for line in filter(None, body.decode().split("\n")):
                entry = json.loads(line)
                value = entry["value"]
                if entry["key"] == "file":
                    repository.files[value["path"]] = base64.b64decode(value["content"])
                elif entry["key"] == "lfsFile":
                    if value["oid"] not in self.hub.objects:
                        return self.refuse(400, "LFS object is missing")
                    repository.files[value["path"]] = self.hub.objects[value["oid"]]
                elif entry["key"] == "deletedFile":
                    repository.files.pop(value["path"], None)
            repository.commits.append(hashlib.sha1(body + str(len(repository.commits)).encode()).hexdigest())
            return self.answer(200, {"commitUrl": f"{self.hub.url}/{name}/commit/{repository.commits[-1]}",
                                     "commitOid": repository.commits[-1], "success": True})  # fmt: skip
        if verb.startswith("paths-info"):
            wanted = (
                urllib.parse.parse_qs(body.decode()).get("paths", [])
                if not body.startswith(b"{")
                else json.loads(body)["paths"]
            )
            return self.answer(200, [self.entry(repository, p) for p in wanted if p in repository.files])
        return self.refuse(404, "no such address")

    def do_PUT(self) -> None:  # noqa: N802
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
            repository, file = self.hub.repositories.get((kind, name)), rest.split("/", 1)[1]
            if repository is None or (repository.private and not self.known()):
                return self.refuse(404, "Repository not found", "RepoNotFound") if repository is None else None
            if file not in repository.files:
                return self.answer(
                    404,
                    {"error": "Entry not found"},
                    {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": repository.commits[-1]},
                )
            body = repository.files[file]
            return self.answer(200, body=body, headers={
                "ETag": f'"{hashlib.sha256(body).hexdigest()}"', "X-Repo-Commit": repository.commits[-1],
                "Content-Type": "application/octet-stream", "Accept-Ranges": "none"})  # fmt: skip
        kind, name, verb = self.place(path)
        repository = self.hub.repositories.get((kind, name))
        if repository is None:
            return self.refuse(404, "Repository not found", "RepoNotFound")
        if verb.startswith("tree"):
            inside = verb.split("/", 2)[2].rstrip("/") + "/" if verb.count("/") > 1 else ""
            return self.answer(
                200, [self.entry(repository, p) for p in sorted(repository.files) if p.startswith(inside)]
            )
        return self.answer(200, {"id": name, "sha": repository.commits[-1], "private": repository.private, "tags": [], "downloads": 0,
                                 "likes": 0, "siblings": [{"rfilename": p} for p in sorted(repository.files)]})  # fmt: skip

    def place(self, path: str) -> tuple[str, str, str]:
        """(kind, name, what comes after it) of /api/KIND/ORG/NAME/…"""
        parts = path.split("/")
        return (parts[2], "/".join(parts[3:5]), "/".join(parts[5:])) if len(parts) >= 5 else ("", "", "")

    def entry(self, repository: Repository, path: str) -> dict[str, Any]:
        body = repository.files[path]
        return {"type": "file", "path": path, "size": len(body), "oid": hashlib.sha1(body).hexdigest()}
