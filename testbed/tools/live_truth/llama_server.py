"""llama.cpp's server on loopback, which answers the prompts that FlowEdge's agents answer."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowedge.core.errors import DeadlineError
from flowedge_testbed.runs import Task
from testbed.tools.beside_llamacpp.rpc_servers import LOOPBACK, end_processes, free_port

LOAD_S, POLL_S, ANSWER_S = 120.0, 0.2, 600.0
CONTEXT = 4096
PLAIN = "none"
SPECULATIONS = (PLAIN, "ngram-simple", "ngram-map-k", "ngram-mod", "ngram-cache")  # its --spec-type


@dataclass(frozen=True)
class LlamaServer:
    """A server that has loaded the model.

    Attributes:
        speculation: how it drafts.
    """

    speculation: str
    port: int

    @property
    def method(self) -> str:
        return "llama.cpp" if self.speculation == PLAIN else f"llama.cpp, {self.speculation}"

    def tokens_per_s(self, tasks: Sequence[Task]) -> float:
        """Answer the prompts greedily, one after the other; return tokens/s after the first tokens."""
        timings = [self._answer(task) for task in tasks]
        tokens = sum(each["predicted_n"] - 1 for each in timings)
        return float(tokens / sum(each["predicted_ms"] for each in timings) * 1e3)

    def await_loaded(self) -> None:
        """Wait until it has loaded the model. Raises DeadlineError when it has not in time."""
        deadline = time.monotonic() + LOAD_S
        while time.monotonic() < deadline:
            with suppress(OSError):  # it does not listen yet, or answers that it is loading
                urllib.request.urlopen(f"http://{LOOPBACK}:{self.port}/health", timeout=ANSWER_S).close()
                return
            time.sleep(POLL_S)
        raise DeadlineError(f"llama-server with {self.speculation} was not ready within {LOAD_S:g} s")

    def _answer(self, task: Task) -> dict[str, Any]:
        asked = {
            "prompt": list(task.prompt),
            "n_predict": task.max_new_tokens,
            "temperature": 0,
            "cache_prompt": False,
        }
        request = urllib.request.Request(
            f"http://{LOOPBACK}:{self.port}/completion",
            json.dumps(asked).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            timings: dict[str, Any] = json.load(answer)["timings"]
        return timings


@contextmanager
def llama_servers(program: Path, model: str, threads: int) -> Iterator[list[LlamaServer]]:
    """Have a server of each kind of speculation, whose processes end when the context is left.

    Raises:
        DeadlineError: when a server has not loaded the model in time.
    """
    with ExitStack() as stack:
        servers: list[LlamaServer] = []
        for kind in SPECULATIONS:
            port = free_port()
            sizes = ["-c", str(CONTEXT), "-t", str(threads), "-tb", str(threads), "-np", "1"]
            place = ["--host", LOOPBACK, "--port", str(port), "--no-webui", "--no-warmup"]
            command = [str(program), "-m", model, *sizes, *place, "--spec-type", kind]
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            stack.callback(end_processes, [process])
            servers.append(LlamaServer(kind, port))
            servers[-1].await_loaded()
        yield servers
