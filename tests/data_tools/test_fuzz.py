"""Hostile logs: whatever stands in them, a harvest names it, reads the rest, stays in its folder and in its memory.

`watched` runs the whole harvest in a process of its own under an address-space limit, and looks at what it wrote.
"""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from synthetic_runs import checkpoint, child, code, diff, log, program_json, seed_json, trace, trace_json, user_prompt

from data_tools import harvest
from data_tools.readers import openevolve_rows, traces
from data_tools.readers.files import MEMORY, Problems
from eft.errors import EftError
from eft.records import read_transitions

SLOW = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
REPOSITORY = Path(__file__).resolve().parents[2]


def reply_record(number: int = 0, **changes: Any) -> dict[str, Any]:
    return {"kind": "reply", "search": "s1", "index": number, "mutator": "m", "model": "big", "status": "ok",
            "content": diff(0, number), "reasoning": "r", "usage": {"prompt_tokens": 1, "completion_tokens": 2},
            "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": user_prompt(code(0))}],
            "finish_reason": "stop", "seconds": 0.5, **changes}  # fmt: skip


def proposal_record(number: int = 0, **changes: Any) -> dict[str, Any]:
    return {"kind": "proposal", "search": "s1", "index": number, "mutator": "ast", "parent_code": code(0),
            "child_code": code(number), "response": diff(0, number), "parent_metrics": {"combined_score": 0.0},
            "child_metrics": {"combined_score": 1.0}, "child_artifacts": {}, "chosen": False,
            "messages": [{"role": "user", "content": user_prompt(code(0))}], **changes}  # fmt: skip


def finch_record(number: int = 0, **changes: Any) -> dict[str, Any]:
    return {"domain": "d", "task": "t", "improvement_label": "improved", "parent_id": "p", "child_id": f"c{number}",
            "parent_metrics": "{}", "child_metrics": "{}", "parent_code": code(0), "child_code": code(number),
            "user_prompt": user_prompt(code(0)), "system_prompt": "s", "response": diff(0, number), "metadata": "{}",
            **changes}  # fmt: skip


# ------------------------------------------------------------------------------------------------ any values, any tears

PLAIN = (st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**400)
         | st.sampled_from(["../../x", "/etc/passwd", "\ud800", "a\0b", "", "x" * 300]))  # fmt: skip
DEEP = st.sampled_from([1, 40, 300, 900]).map(lambda n: json.loads("[" * n + "]" * n))
ANY = PLAIN | DEEP | st.lists(PLAIN, max_size=2) | st.dictionaries(st.text(max_size=3), PLAIN | DEEP, max_size=2)
RECORDS = {"program": program_json(child(1)), "trace": trace_json(child(1)), "reply": reply_record(1),
           "proposal": proposal_record(1), "finch": finch_record(1), "metadata": {"last_iteration": 3},
           "failure": {"iteration": 1, "error": "e", "prompt": {"user": "u"}, "llm_response": "r"},
           "about": {"search": "s1", "task": "t", "role": "train"}}  # fmt: skip


@st.composite
def damaged(draw, kind: str) -> dict[str, Any]:
    """A record with a few values of any type, on the first or the second level."""
    value = json.loads(json.dumps(RECORDS[kind]))
    for _ in range(draw(st.integers(0, 3))):
        name = draw(st.sampled_from([*sorted(value), "more"]))
        if isinstance(value.get(name), dict) and value[name] and draw(st.booleans()):
            value[name][draw(st.sampled_from(sorted(value[name])))] = draw(ANY)
        else:
            value[name] = draw(ANY)
    if kind == "finch" and draw(st.booleans()):  # an unknown label is an error by design
        value["improvement_label"] = "regressed"
    return value


def written(path: Path, lines: list[bytes], seed: int) -> None:
    """The lines, one or the other of them torn, twice, or with bytes that are no UTF-8."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if lines and seed % 5 == 1:
        lines = [*lines, lines[0]]
    if lines and seed % 5 == 2:
        lines = lines[::-1]
    raw = b"\n".join(lines)
    if seed % 5 == 3:
        raw = raw[: len(raw) // 2] + b"\xff\xfe" + raw[len(raw) // 2 :]
    if seed % 5 == 4:
        raw = raw[: -(seed % 97)]
    path.write_bytes(raw)


def dumped(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


def snapshot(folder: Path) -> dict[str, int]:
    return {str(p.relative_to(folder)): p.lstat().st_size for p in folder.rglob("*")}


@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
def test_damaged_logs_of_every_kind_are_harvested_all_the_same(tmp_path_factory, data):
    tmp_path = tmp_path_factory.mktemp("fuzz")
    world, run, seed = tmp_path / "world", tmp_path / "world" / "run", data.draw(st.integers(0, 500))
    folder = checkpoint(run, 10, [seed_json(), program_json(child(90))]) / "programs"
    for number in range(data.draw(st.integers(0, 2))):
        written(folder / f"odd{number}.json", [dumped(data.draw(damaged("program")))], seed)
    many = {"evolution_trace.jsonl": "trace", "evolution_trace_failures.jsonl": "failure", "journal/s1.jsonl": "reply",
            "journal/s2.jsonl": "proposal", "rows.jsonl": "finch"}  # fmt: skip
    for name, kind in many.items():
        records = data.draw(st.lists(damaged(kind), max_size=3))
        written(run / name, [dumped(r) for r in records], seed // 2)
    written(
        run / "checkpoints" / "checkpoint_10" / "metadata.json", [dumped(data.draw(damaged("metadata")))], seed // 3
    )
    if data.draw(st.booleans()):
        written(run / "run.json", [dumped(data.draw(damaged("about")))], seed)
    before = snapshot(world)
    try:
        out = harvest.run(harvest.Config(runs=[run], output=tmp_path / "out" / "h"))
    except EftError as e:  # only where the schema of published rows is not what it was
        assert "unknown label" in str(e) or "lacks columns" in str(e)
    else:
        rows = list(read_transitions(out))
        assert {"child-90"} <= {r.child_id for r in rows}
        assert set(os.listdir(out)) == {"transitions.parquet", "replies.parquet", "searches.json", "manifest.json"}
    assert snapshot(world) == before and set(os.listdir(tmp_path)) <= {"world", "out"}


@given(raw=st.binary(max_size=200).filter(lambda raw: b"solution" not in raw),
       name=st.sampled_from(["evolution_trace.jsonl", "evolution_trace.jsonl.gz", "evolution_trace.json", "x.jsonl",
       "x.parquet", "logs/openevolve_1.log", "config.yaml", "run.json",
       "checkpoints/checkpoint_9/metadata.json", "checkpoints/checkpoint_9/programs/a.json"]))  # fmt: skip
@settings(max_examples=80, deadline=None, suppress_health_check=SLOW)
def test_files_of_any_bytes(tmp_path_factory, raw, name):
    tmp_path = tmp_path_factory.mktemp("bytes")
    checkpoint(tmp_path / "run", 10, [seed_json(), program_json(child(90))])
    (tmp_path / "run" / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "run" / name).write_bytes(raw)
    rows = list(read_transitions(harvest.run(harvest.Config(runs=[tmp_path / "run"], output=tmp_path / "h"))))
    assert [r.child_id for r in rows] == ["child-90"]


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.booleans(), st.booleans()), max_size=8))
@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
def test_cyclic_parents_end(tmp_path_factory, edges):
    tmp_path = tmp_path_factory.mktemp("cycle")
    programs = [program_json(child(90))]
    for number, parent, migrant, logged in edges:
        value = program_json(
            child(number, id=f"p{number}", parent_id=f"p{parent}"), **({} if logged else {"prompts": None})
        )
        value["metadata"] |= {"migrant": True} if migrant else {}
        programs.append(value)
    checkpoint(tmp_path / "run", 10, programs)
    rows = list(read_transitions(harvest.run(harvest.Config(runs=[tmp_path / "run"], output=tmp_path / "h"))))
    assert "child-90" in {r.child_id for r in rows}


# ---------------------------------------------------------------------------------------- size, links, pipes, processes


def watched(run: Path, out: Path) -> tuple[list[str], dict[str, Any], float]:
    """Harvest in a process of its own: (children, searches.json's first entry, peak memory in bytes)."""
    script = ("import resource, sys; from pathlib import Path; from data_tools import harvest\n"
              "harvest.run(harvest.Config(runs=[Path(sys.argv[1])], output=Path(sys.argv[2])))\n"
              "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)")  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", script, run, out], capture_output=True, text=True, timeout=900,
                          env=environment)  # fmt: skip
    assert done.returncode == 0, done.stderr
    children = [r.child_id for r in read_transitions(out)]
    return children, json.loads((out / "searches.json").read_text())[0], float(done.stdout.splitlines()[-1])


def test_huge_lines_and_bombs_stay_within_the_stated_memory(tmp_path):
    run = tmp_path / "run"
    programs = checkpoint(run, 10, [seed_json(), program_json(child(90))]) / "programs"
    hundred = 100 << 20
    with open(run / "evolution_trace.jsonl", "wb") as f:
        f.write(dumped(trace_json(child(1))) + b"\n" + b'{"child_id": "' + b"x" * hundred + b'"}\n')
        f.write(
            b"[" * (30 << 20)
            + b"\n"
            + b'{"a": ['
            + b"{}," * (10 << 20)
            + b"{}]}\n"
            + dumped(trace_json(child(2)))
            + b"\n"
        )
    (programs / "brackets.json").write_bytes(b'{"code": "x", "metrics": [' + b"[]," * (10 << 20) + b"[]]}")
    (programs / "long.json").write_bytes(b'{"code": "' + b"y" * (40 << 20) + b'"}')
    (run / "logs").mkdir()
    (run / "logs" / "openevolve_1.log").write_bytes(b"openevolve Iteration 1 error: " + b"z" * hundred)
    with open(run / "evolution_trace_2.json", "wb") as f:
        f.write(b'{"traces": [' + dumped(trace_json(child(3))) + b', {"child_id": "' + b"x" * hundred + b'"}]}')
    bomb = gzip.compress(b"\0" * (64 << 20), 9)
    (run / "evolution_trace_3.jsonl.gz").write_bytes(gzip.compress(dumped(trace_json(child(4))) + b"\n") + bomb * 8)
    children, told, peak = watched(run, tmp_path / "h")
    assert sorted(children) == ["child-1", "child-2", "child-3", "child-4", "child-90"]
    named = " ".join(where.rpartition("/")[2] + " " + why for where, why in told["bad_files"])
    for word in ("longer than 32 MiB", "more than 4,000,000 values", "larger than 32 MiB", "200 times its size",
                 "a record longer than"):  # fmt: skip
        assert word in named, named
    assert peak < MEMORY, f"{peak / 2**20:.0f} MiB"


def test_links_out_of_the_folder_pipes_and_devices(tmp_path, capsys):
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps(program_json(child(5))))
    run = tmp_path / "run"
    programs = checkpoint(run, 10, [seed_json(), program_json(child(90))]) / "programs"
    (programs / "link.json").symlink_to(secret)
    (programs / "inner.json").symlink_to(programs / "child-90.json")
    (programs / "gone.json").symlink_to(tmp_path / "nowhere")
    (programs / "device.json").symlink_to("/dev/zero")
    os.mkfifo(programs / "pipe.json")
    os.mkfifo(run / "evolution_trace.jsonl")
    os.mkfifo(run / "run.json")
    (run / "loop").symlink_to(run)
    rows = list(read_transitions(harvest.run(harvest.Config(runs=[run], output=tmp_path / "h"))))
    assert [r.child_id for r in rows] == ["child-90"]
    said = capsys.readouterr().err
    assert "leads out of the folder" in said and "not a regular file" in said


@pytest.mark.parametrize("damage", ["cut", "bytes", "link", "types"])
def test_damaged_hdf5(tmp_path, damage):
    h5py = pytest.importorskip("h5py")
    run = tmp_path / "run"
    checkpoint(run, 10, [seed_json(), program_json(child(90))])
    path = trace(run / "evolution_trace.hdf5", [trace_json(child(n)) for n in range(1, 4)])
    raw = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(raw[: len(raw) // 2])
    elif damage == "bytes":
        for at in range(0, len(raw), 61):
            raw[at] ^= 0x5A
        path.write_bytes(raw)
    elif damage == "link":
        other = trace(tmp_path / "elsewhere.hdf5", [trace_json(child(7))])
        with h5py.File(path, "a") as f:
            f["traces/trace_000009"] = h5py.ExternalLink(str(other), "/traces/trace_000000")
    else:
        with h5py.File(path, "a") as f:
            f["traces/trace_000001"].attrs["parent_metrics"] = [1, 2]
            f["traces/trace_000002"].attrs["child_id"] = 7
    rows = list(read_transitions(harvest.run(harvest.Config(runs=[run], output=tmp_path / "h"))))
    found = {r.child_id for r in rows}
    assert "child-90" in found and "child-7" not in found
    assert found >= {"link": {"child-1", "child-2", "child-3"}, "types": {"child-1", "child-2"}}.get(damage, set())


@given(raw=st.binary(max_size=60) | st.text(st.sampled_from('{}[]",:0 tracesn\\'), max_size=60).map(str.encode),
       chunk=st.integers(1, 9))  # fmt: skip
@settings(max_examples=300, deadline=None, suppress_health_check=SLOW)
def test_a_json_trace_of_any_text(tmp_path_factory, raw, chunk):
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_bytes(raw)
    before, traces._CHUNK = traces._CHUNK, chunk
    problems = Problems()
    try:
        found = list(traces.traces_json(path, problems))
    finally:
        traces._CHUNK = before
    try:
        value = json.loads(raw)
    except ValueError:
        value = None
    listed = value.get("traces") if isinstance(value, dict) else value
    if isinstance(listed, list) and all(isinstance(r, dict) for r in listed):
        assert found == listed or list(value).count("traces") != 1 if isinstance(value, dict) else found == listed
    elif value is not None and not isinstance(listed, list):
        assert problems.found


def test_what_one_bad_run_of_many_costs_the_others(tmp_path):
    for name in ("a", "b", "c"):
        checkpoint(tmp_path / "all" / name, 10, [seed_json(), program_json(child(1, id=f"{name}-1"))])
        log(tmp_path / "all" / name, [child(1)])
    (tmp_path / "all" / "b" / "checkpoints" / "checkpoint_10" / "programs" / "b-1.json").write_bytes(b"\0" * 100)
    rows = list(read_transitions(harvest.run(harvest.Config(runs=[tmp_path / "all"], output=tmp_path / "h"))))
    assert {r.child_id for r in rows} == {"a-1", "c-1"}


def test_an_interrupted_harvest_leaves_nothing_half(tmp_path, monkeypatch):
    checkpoint(tmp_path / "run", 10, [seed_json(), *(program_json(child(n)) for n in range(1, 9))])
    config = harvest.Config(runs=[tmp_path / "run"], output=tmp_path / "h")
    harvest.run(config)
    first = {p.name: p.read_bytes() for p in (tmp_path / "h").iterdir() if p.suffix == ".parquet"}

    calls = iter(range(3))

    def interrupted(**_):
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return openevolve_rows.Replayed("unknown", "", "", "", "")

    monkeypatch.setattr(openevolve_rows, "replay", interrupted)
    with pytest.raises(KeyboardInterrupt):
        harvest.run(config)
    assert not (tmp_path / "h" / "manifest.json").exists()  # unfinished, and says so
    assert sorted(p.name for p in (tmp_path / "h").iterdir()) == [
        "replies.parquet",
        "searches.json",
        "transitions.parquet",
    ]
    monkeypatch.undo()
    harvest.run(config)
    assert {n: (tmp_path / "h" / n).read_bytes() for n in first} == first


def test_a_harvest_that_is_killed_starts_clean(tmp_path):
    checkpoint(tmp_path / "run", 10, [seed_json(), *(program_json(child(n)) for n in range(1, 9))])
    script = ("import itertools, os, signal, sys; from pathlib import Path; from data_tools import harvest\n"
              "from data_tools.readers import openevolve_rows as rows\n"
              "real, calls = rows.replay, itertools.count()\n"
              "def replay(**options):\n"
              "    if next(calls) == 4: os.kill(os.getpid(), signal.SIGKILL)\n"
              "    return real(**options)\n"
              "rows.replay = replay\n"
              "harvest.run(harvest.Config(runs=[Path(sys.argv[1])], output=Path(sys.argv[2])))")  # fmt: skip
    out = tmp_path / "h"
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "run", out], env={**os.environ, "PYTHONPATH": str(REPOSITORY)}
    )
    assert done.returncode == -signal.SIGKILL
    left = sorted(p.name for p in out.iterdir())
    assert left and all(name.startswith(".") for name in left)  # nothing that looks finished
    harvest.run(harvest.Config(runs=[tmp_path / "run"], output=out))
    assert sorted(p.name for p in out.iterdir()) == [
        "manifest.json",
        "replies.parquet",
        "searches.json",
        "transitions.parquet",
    ]
    assert len(list(read_transitions(out))) == 8
