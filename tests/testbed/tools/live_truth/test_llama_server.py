"""What is asked of llama.cpp's server, and what is made of its answer."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from flowedge.core.sampling import SamplingParams
from flowedge_testbed.runs import Task
from testbed.tools.live_truth.llama_server import LlamaServer

asked: list[dict[str, Any]] = []


class Answering(BaseHTTPRequestHandler):
    """Answers as llama-server does: 503 until the model is loaded, then with timings."""

    loading = 2

    def do_GET(self) -> None:
        type(self).loading -= 1
        self._reply({"status": "ok"}, 503 if self.loading > 0 else 200)

    def do_POST(self) -> None:
        asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        number = asked[-1]["n_predict"]
        self._reply({"content": "", "timings": {"predicted_n": number, "predicted_ms": 100.0 * (number - 1)}})

    def log_message(self, *_: object) -> None:
        pass

    def _reply(self, content: dict[str, Any], status: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def test_answers_are_greedy_from_the_same_tokens_and_counted_after_the_first() -> None:
    with HTTPServer(("127.0.0.1", 0), Answering) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        server = LlamaServer("ngram-mod", http.server_port)
        server.await_loaded()
        tasks = [Task(prompt, SamplingParams(), 5, ()) for prompt in ((1, 2, 3), (4, 5))]
        assert server.tokens_per_s(tasks) == pytest.approx(10.0)
        http.shutdown()
    assert [each["prompt"] for each in asked] == [[1, 2, 3], [4, 5]]
    assert all(each["temperature"] == 0 and not each["cache_prompt"] for each in asked)
    assert server.method == "llama.cpp, ngram-mod" and LlamaServer("none", 1).method == "llama.cpp"
