"""A model endpoint without a model: a reply is a pure function of the prompt, so that runs compare bit by bit."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from eft.errors import EftError
from eft.mutators.ast import AstMutator


class Endpoint:
    """An OpenAI-compatible server on loopback that answers with edits of syntax trees, now and then with nonsense.

    `asked`: how many replies were made, the paid ones; `under_way`: those that are being made. `broken`: answer
    everything with this HTTP status.
    """

    def __init__(self, model: str = "toy", seconds: float = 0.0) -> None:
        self.model, self.seconds, self.broken = model, seconds, 0
        self.asked = self.under_way = 0
        self._lock = threading.Lock()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: object) -> None:
                pass

            def _send(self, status: int, value: object) -> None:
                body = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self) -> None:
                self._send(200, {"object": "list", "data": [{"id": endpoint.model, "object": "model"}]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if endpoint.broken:
                    return self._send(endpoint.broken, {"error": {"message": "out of order"}})
                self._send(200, endpoint.reply(body["messages"]))

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.base_url = f"http://127.0.0.1:{self._server.server_port}/v1"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def reply(self, messages: list[dict[str, str]]) -> dict:
        """The completion for `messages`; counted."""
        seed = int.from_bytes(hashlib.sha256(json.dumps(messages).encode()).digest()[:4])
        with self._lock:
            self.under_way += 1
        time.sleep(self.seconds)
        with self._lock:
            self.asked += 1
            self.under_way -= 1
        try:
            text = "I would rather not." if seed % 5 == 0 else AstMutator(seed=seed).propose(messages, 0).content
        except EftError:
            text = "no program here"
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        return {"id": "x", "object": "chat.completion", "model": self.model, "choices": [choice], "usage": usage}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
