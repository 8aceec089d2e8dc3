"""`eft collect` with a model behind an endpoint: what it is sent, what it may cost, how it ends and goes on."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError
from toy import block, trail

from data_tools import harvest
from eft import resources
from eft.prompts import current_program, edit_kind
from eft.records import read_transitions
from eft.search import collect
from eft.search.process import Progress

pytestmark = pytest.mark.integration


@dataclass
class Teacher:
    """A server that improves the toy program: the answer depends on the prompt and on the seed that it is sent."""

    url: str = ""
    asked: list[dict] = field(default_factory=list)
    delay: float = 0.0  # seconds before each answer

    def answer(self, body: dict) -> dict:
        self.asked.append(body)
        time.sleep(self.delay)
        user = body["messages"][-1]["content"]
        code, draw = current_program(user), (body.get("seed") or 0) + len(user)
        old = re.search(r"^STEP = .*$", code, re.MULTILINE)[0]
        new = f"STEP = {1 + draw % 17 / 10}"
        if draw % 5 == 4:
            text = "I do not know."
        elif edit_kind(user) == "diff":
            text = block(old, new)
        else:
            text = f"```python\n{code.replace(old, new)}\n```"
        message = {"role": "assistant", "content": text, "reasoning_content": f"so {new}"}
        return {"id": "x", "object": "chat.completion", "created": 0, "model": body["model"],
                "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
                "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}}  # fmt: skip


@pytest.fixture
def teacher() -> Iterator[Teacher]:
    made = Teacher()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            data = json.dumps(made.answer(body)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    made.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    yield made
    server.shutdown()
    server.server_close()


def config(toy: Path, out: Path, **options) -> collect.Config:
    return collect.Config(
        **{"tasks": [str(toy)], "output": out, "iterations": 6, "seeds": 2, "sandbox": "rlimits", **options}
    )


def manifest_of(out: Path) -> dict:
    return json.loads((out / "manifest.json").read_text())["counts"]


def replies(out: Path) -> list[dict]:
    lines = [line for f in sorted((out / "journal").glob("*.jsonl")) for line in f.read_text().splitlines()]
    return [r for r in map(json.loads, lines) if r["kind"] == "reply"]


def test_a_teacher_its_parameters_and_its_reasoning(toy, teacher, tmp_path) -> None:
    collect.run(config(toy, tmp_path / "c", teacher=f"big@{teacher.url}", temperature=0.9, top_p=0.8, max_tokens=77,
                       mutator={"reasoning": "high", "params": {"top_k": 20}}))  # fmt: skip
    assert len(teacher.asked) == 12 and manifest_of(tmp_path / "c")["searches"] == 2
    for body in teacher.asked:
        sent = {k: body.get(k) for k in ("model", "temperature", "top_p", "max_tokens", "reasoning_effort", "top_k")}
        assert sent == {"model": "big", "temperature": 0.9, "top_p": 0.8, "max_tokens": 77, "reasoning_effort": "high",
                        "top_k": 20}  # fmt: skip
    forms = {json.loads(f.read_text())["edit"] for f in (tmp_path / "c").glob("*/run.json")}
    assert forms == {"diff", "rewrite"}
    rows = list(read_transitions(harvest.run(harvest.Config(runs=[tmp_path / "c"], output=tmp_path / "h"))))
    table = pq.read_table(tmp_path / "h" / "replies.parquet").to_pylist()
    assert len(table) == 12 == len(replies(tmp_path / "c"))  # every reply, those of no use too
    assert len(rows) == sum(r["outcome"] == "child" for r in table)
    assert all(r.reasoning.startswith("so STEP") and r.model == "big" and r.response_tokens == 20 for r in rows)


def test_several_samples_and_the_best_goes_on(toy, teacher, tmp_path) -> None:
    out = tmp_path / "c"
    collect.run(config(toy, out, teacher=f"big@{teacher.url}", mutator={"samples": 3}, seeds=1, iterations=4))
    assert len(teacher.asked) == 12  # the toy's prompts differ from one iteration to the next
    rows = list(read_transitions(harvest.run(harvest.Config(runs=[out], output=tmp_path / "h"))))
    proposals = [r for r in rows if r.scaffold == "gateway"]
    assert rows and {r.scaffold for r in rows} <= {"openevolve", "gateway"} and all(r.model == "big" for r in proposals)
    lines = [json.loads(x) for f in (out / "journal").glob("*.jsonl") for x in f.read_text().splitlines()]
    groups: dict[int, list[dict]] = {}
    for record in lines:
        if record["kind"] == "proposal":
            groups.setdefault(record["index"], []).append(record)
    for group in groups.values():
        best = max(g["child_metrics"].get("combined_score", float("-inf")) for g in group)
        chosen = [g for g in group if g["chosen"]]
        assert len(chosen) == 1 and chosen[0]["child_metrics"].get("combined_score", float("-inf")) == best


def test_a_budget_ends_it_in_good_order_and_a_larger_one_goes_on(toy, teacher, tmp_path, capsys) -> None:
    out = tmp_path / "c"
    collect.run(config(toy, out, teacher=f"big@{teacher.url}", budget={"tokens": 600}, workers=1))
    counts = manifest_of(out)
    assert "tokens" in counts["stopped"] and counts["unfinished"] >= 1 and counts["failed_searches"] == 0
    assert len(teacher.asked) in (5, 6) and "a larger budget goes on from here" in capsys.readouterr().err
    before = len(teacher.asked)
    rows = list(read_transitions(harvest.run(harvest.Config(runs=[out], output=tmp_path / "h"))))
    assert rows  # what an unfinished search has can be harvested
    collect.run(config(toy, out, teacher=f"big@{teacher.url}", budget={"tokens": 100_000}, workers=1))
    counts = manifest_of(out)
    assert counts["stopped"] == "" and counts["unfinished"] == 0 and len(teacher.asked) == 12
    assert before < 12  # nothing was asked twice: 12 in all


def test_every_budget_and_hours_over_restarts(toy, tmp_path) -> None:
    used = {"m": {"replies": 5, "prompt_tokens": 500, "completion_tokens": 100, "dollars": 0.5}}
    for budget, word in (({"replies": 5}, "5 of 5 replies"), ({"tokens": 600}, "600 of 600"), ({"tokens": 601}, ""),
                         ({"dollars": 0.5, "prompt_price": 1.0}, "dollars"), ({"hours": 1.0}, "hours"),
                         ({"hours": 3.0}, ""), ({}, "")):  # fmt: skip
        (tmp_path / "spent.json").write_text(json.dumps({"seconds": 7200.0}))
        options = config(toy, tmp_path, budget=budget, mutator={"name": "m"})
        found = collect.Watch(options, tmp_path, lambda: used).used_up()
        assert word in found and bool(word) == bool(found)
    for torn in ("", "{", '{"seconds": "many"}', "[]", '{"seconds": -5}'):
        (tmp_path / "spent.json").write_text(torn)
        assert collect.Watch(config(toy, tmp_path), tmp_path, dict).seconds < 60
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "spent.json").write_text(json.dumps({"seconds": 7200.0}))
    collect.run(config(toy, tmp_path / "c", teacher="ast", budget={"hours": 1.0}))
    counts = manifest_of(tmp_path / "c")
    assert "hours" in counts["stopped"] and counts["unfinished"] == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_in_any_way_it_continues_to_the_same_end(toy, teacher, tmp_path, eft, number) -> None:
    def command(out: Path) -> list[object]:
        return ["collect", toy, "-o", out, "--iterations", 8, "--teacher", f"big@{teacher.url}", "--sandbox", "rlimits"]

    shot = tmp_path / "shot"
    nowhere = subprocess.DEVNULL
    line = [sys.executable, "-m", "eft.cli", *map(str, command(shot))]
    teacher.delay = 0.4
    running = subprocess.Popen(
        line, cwd=resources.PACKAGE.parent, stdout=nowhere, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job ignores it
    )  # fmt: skip
    names = ("toys-toy-diff-s0", "toys-toy-rewrite-s1")
    deadline, progress = time.monotonic() + 300, [Progress(shot / n) for n in names]
    while sum(p.done() for p in progress) < 3:
        assert time.monotonic() < deadline and running.poll() is None
        time.sleep(0.02)
    os.kill(running.pid, number)
    said = running.communicate(timeout=300)[1]
    assert running.returncode != 0 and "Traceback" not in said, said
    assert not (shot / "manifest.json").exists()
    time.sleep(1)  # the searches end with the process that started them
    asked = len(teacher.asked)
    time.sleep(0.5)
    assert len(teacher.asked) == asked
    teacher.delay = 0.0
    done = eft(*command(shot))
    assert done.returncode == 0, done.stderr
    found = {n: trail(shot / n) for n in names}
    assert all(len(rows) == 8 for rows in found.values())
    keys = [r["key"] for r in replies(shot) if r["status"] == "ok"]
    assert len(keys) == len(set(keys)) == 16  # answered once each, whatever was in flight


def test_what_is_refused(toy, tmp_path) -> None:
    for options in ({"teacher": "big"}, {"teacher": "big@ftp://x"}, {"teacher": "ast", "mutator": {"samples": 2}},
                    {"budget": {"dollars": 1.0}}, {"mutator": {"model": "m"}}):  # fmt: skip
        with pytest.raises(ValidationError), contextlib.suppress(KeyError):
            config(toy, tmp_path / "c", **options)
