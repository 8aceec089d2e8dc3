"""Hostile genomes of the other loops: recipes that are bombs, name files or code; policies that do what programs may not.

What a genome may say at all is tested where it is read (tests/loops); here it is thrown at whole tasks, watched from
outside, as a search would.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "loops"))

import merging  # noqa: E402
import routing_tables  # noqa: E402

from eft import loops  # noqa: E402
from eft.loops import merge_client  # noqa: E402
from eft.records import Validity  # noqa: E402
from eft.tasks import attacks, policy  # noqa: E402
from eft.tasks.evaluate import evaluate  # noqa: E402

BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 10)}]\n" for i in range(12)
)
GENOMES = {
    "a bomb of aliases": BOMB,
    "an alias of itself": "merge_method: &m [*m]\nmodels: *m\n",
    "merge keys": "<<: &x {merge_method: linear}\nmodels: [{<<: *x}]\n",
    "python/object/apply": "!!python/object/apply:os.system ['touch @MARK@']",
    "python/name": "merge_method: !!python/name:os.system\nmodels: []\n",
    "python/module": "merge_method: linear\nmodels: !!python/module:antigravity\n",
    "an unknown tag": "merge_method: !eval linear\nmodels: []\n",
    "a path that is there": "merge_method: linear\nmodels: [{model: /etc/passwd, parameters: {weight: 1}}]\n",
    "a path that is not": "merge_method: linear\nmodels: [{model: /etc/passwdd, parameters: {weight: 1}}]\n",
    "a path upwards": "merge_method: linear\nmodels: [{model: ../a, parameters: {weight: 1}}]\n",
    "a hub id": "merge_method: linear\nmodels: [{model: org/name, parameters: {weight: 1}}]\n",
    "code to trust": "merge_method: linear\ntrust_remote_code: true\nmodels: [{model: a, parameters: {weight: 1}}]\n",
    "another tokenizer": "merge_method: linear\ntokenizer_source: /etc\nmodels: [{model: a, parameters: {weight: 1}}]\n",
    "an output of its own": "merge_method: linear\nout_path: /tmp/@MARK@\nmodels: [{model: a, parameters: {weight: 1}}]\n",
    "a number beyond floats": f"merge_method: linear\nmodels: [{{model: a, parameters: {{weight: {'9' * 5000}}}}}]\n",
    "a number in base 60": "merge_method: linear\nmodels: [{model: a, parameters: {weight: 1:2:3:4:5:6:7:8:9}}]\n",
    "NaN": "merge_method: linear\nmodels: [{model: a, parameters: {weight: .nan}}]\n",
    "a thousand models": "merge_method: linear\nmodels: [" + "{model: a, parameters: {weight: 1}}, " * 1000 + "]\n",
    "deep brackets": "merge_method: " + "[" * 9000,
    "deep blocks": "".join(f"{' ' * i}a:\n" for i in range(150)),
    "a regular expression that never ends": "merge_method: linear\nmodels: [{model: a, parameters: {weight: [{filter: '(a+)+$', "
                                            "value: 1}, {value: 1}]}}]\n",
    "zeros": "\0" * 50,
    "control characters": "merge_method: \x1b[31mlinear\x07\nmodels: []\n",
    "nothing": "",
    "megabytes": "# " + "x" * 4_000_000,
    "many documents": "---\na: 1\n" * 2000,
}  # fmt: skip


@pytest.fixture(scope="module")
def merge_task(tmp_path_factory):
    root = tmp_path_factory.mktemp("merge")
    section = loops.section("merge", merging.root(root))
    (task,) = loops.load("merge").tasks(section, root=root, out=root / "out")
    return task


@pytest.fixture(scope="module")
def routing_task(tmp_path_factory):
    root = tmp_path_factory.mktemp("routing")
    section = loops.section("routing", {"table": str(routing_tables.write(root / "t.csv")), "splits": 1, "routers": []})
    (task,) = loops.load("routing").tasks(section, root=root, out=root / "out")
    return task


@pytest.fixture(scope="module")
def watch(merge_task, routing_task):
    with attacks.watched(merge_task.folder, routing_task.folder) as watch:
        yield watch


@pytest.mark.parametrize("name", GENOMES)
@pytest.mark.parametrize("hidden", [False, True])
def test_a_hostile_recipe_is_a_failed_candidate(merge_task, watch, monkeypatch, name, hidden):
    monkeypatch.setattr(merge_client, "_start", lambda work: pytest.fail("a worker was started for it"))
    started = time.monotonic()
    found = evaluate(merge_task, GENOMES[name].replace("@MARK@", watch.mark), hidden=hidden)
    assert found.validity is not Validity.VALID and found.score is None
    assert time.monotonic() - started < 60 and not watch.left()
    error = str(found.metrics["error"])
    assert "the scorer failed" not in error and "\n" not in error and len(error) < 500 and found.metrics["combined_score"] == 0.0


def test_a_recipe_learns_nothing_of_the_disk(merge_task):
    said = [str(evaluate(merge_task, GENOMES[f"a path that is {there}"]).metrics["error"]) for there in ("there", "not")]
    assert said[0] == said[1].replace("/etc/passwdd", "/etc/passwd")


def test_acts_in_a_policy(routing_task, watch, monkeypatch):
    """First as it is: refused, with the reason. Then without the refusal: the sandbox holds all the same."""
    program = attacks.act_program(routing_task, watch)
    assert program.count("_eft_try(") > 60
    found = evaluate(routing_task, program)
    assert found.score is None and "import" in str(found.metrics["error"]) and not watch.left()
    seed = evaluate(routing_task, routing_task.seed())
    assert seed.validity is Validity.VALID
    monkeypatch.setattr(policy, "refusal", lambda code: None)
    found = evaluate(routing_task, program)
    said = str(found.artifacts.get("stderr", ""))
    assert attacks.BREACH not in said and not watch.left()
    assert found.score in (None, seed.score)  # nothing is won by any of it


@pytest.mark.parametrize(
    "code, told",
    [
        ("def route(state):\n    while True: pass\n", "timeout"),
        ("def route(state):\n    return 'a model that is not there'\n", "a model that is not there"),
        ("def route(state):\n    raise ValueError('no')\n", "no"),
        ("def route(state):\n    return state\n", ""),
        ("def route(state):\n    return open('/etc/passwd').read()\n", "open"),
        ("import os\ndef route(state):\n    return os.environ\n", "os"),
        ("def route(state):\n    return ().__class__.__base__.__subclasses__()\n", "__"),
        ("def route(state, seen=[]):\n    seen.append(1)\n    return state['models'][len(seen) % 2]\n", ""),
        ("def route(state):\n    return 'x' * 10**9\n", ""),
        ("def route(state):\n    return route(state)\n", ""),
        ("x = 1\n", ""),
        # no programs alone; with what is put behind them they would be, and nobody would have looked at them
        ("import os\ndef route(state):\n    return state['models'][os.getpid() * 0]\nx = 1 \\", "SyntaxError"),
        ("import os\ndef route(state):\n    return state['models'][os.getpid() * 0]\n@print", "SyntaxError"),
        # modules that lie about in those that compute
        ("from collections import _sys\ndef route(state):\n    return state['models'][0]\n", "_sys"),
        ("from enum import sys\ndef route(state):\n    return state['models'][0]\n", "sys"),
        ("import enum\ndef route(state):\n    return state['models'][enum.sys.maxsize * 0]\n", ".sys"),
        ("import operator\ndef route(state):\n    return operator.attrgetter('__class__')(state)\n", "attrgetter"),
        ("def route(state):\n    match state:\n        case object(__class__=c): return c\n", "__class__"),
    ],
)
def test_policies_that_hang_raise_peek_or_remember(routing_task, watch, code, told):
    with attacks.capped(attacks.WALL_S if told == "timeout" else 60.0):
        found = evaluate(routing_task, code)
    assert found.validity is not Validity.VALID and found.score is None and not watch.left()
    assert told in str(found.metrics["error"])

