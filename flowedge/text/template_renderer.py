"""Rendering of chat templates in a process of their own, which can be ended when a template does not end."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import markupsafe

from flowedge.core.errors import BadRequestError, CheckpointError, FlowEdgeError
from flowedge.text.template_worker import LENGTH

CPU_S = 3  # CPU seconds of one rendering; those of published models take milliseconds
ANSWER_S = 30.0  # of wall time, for a worker that a busy machine starts and runs
EXTRA_CHARACTERS = 256 << 10  # of a text, beside twice the characters of its messages
_MAX_TEMPLATE = 1 << 20  # characters
_MAX_REPLY = 1 << 30  # bytes; the worker keeps its text within the limit of the request
_END_S = 5.0  # between the end of the link and that of the process
_PIECE = 1 << 16  # bytes
_WORKER = Path(__file__).with_name("template_worker.py")
# Named to the worker, because an isolated process does not search a user's own packages.
_PACKAGES = sorted({str(Path(str(package.__file__)).parents[1]) for package in (jinja2, markupsafe)})
_RUN = "import runpy, sys; sys.path += sys.argv[2:]; runpy.run_path(sys.argv[1], run_name='__main__')"
_PROBE = ({"role": "user", "content": "Hi"},)


class TemplateRenderer:
    """Renders chat templates in a worker process, started when it is needed. Usable from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._owner = 0

    def check(self, template: str, place: str) -> None:
        """Render a message of one word: a template without an end is refused when its model is loaded.

        Args:
            place: the directory of the tokenizer, to name in errors.

        Raises:
            CheckpointError: when the template is no program, or exceeds a limit.
        """
        # A template may refuse a message, for instance a conversation without a system message.
        with contextlib.suppress(BadRequestError):
            self.render(template, place, _PROBE, {}, add_generation_prompt=True)

    def render(
        self,
        template: str,
        place: str,
        messages: Sequence[Mapping[str, Any]],
        further: Mapping[str, Any],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """Return the text of a conversation.

        Args:
            place: the directory of the tokenizer, to name in errors.
            further: values by name: the texts of special tokens, such as "bos_token", and the request's.
            add_generation_prompt: whether the text ends with the beginning of an answer.
            tools: JSON objects of the tools that the template is to describe.

        Raises:
            BadRequestError: when the template refuses the messages.
            CheckpointError: when the template is no program, or exceeds a limit of time, memory or size.
        """
        if len(template) > _MAX_TEMPLATE:
            raise _unusable(place, f"it has {len(template)} characters, more than {_MAX_TEMPLATE}")
        values = {
            **further,
            "messages": [dict(message) for message in messages],
            "tools": [dict(tool) for tool in tools] or None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        content = sum(len(json.dumps(each, ensure_ascii=False)) for each in (*messages, *tools))
        limit = 2 * content + EXTRA_CHARACTERS
        request = {"template": template, "values": values, "limit": limit, "cpu_s": CPU_S}
        reply = self._answer(json.dumps(request, default=str).encode(), place)
        if "text" in reply:
            return str(reply["text"])
        if reply["kind"] == "refused":
            raise BadRequestError(f"the model's chat template refuses the messages: {reply['error']}")
        raise _unusable(place, str(reply["error"]))

    def close(self) -> None:
        """End the worker; the next rendering starts another one."""
        process, link = self._process, self._link
        self._process = self._link = None
        if link is not None:
            link.close()
        if process is not None and self._owner == os.getpid():  # not in a fork, whose parent needs the worker
            process.kill()
            process.wait()

    def _answer(self, request: bytes, place: str) -> dict[str, Any]:
        with self._lock:
            if self._owner != os.getpid() or self._process is None or self._process.poll() is not None:
                self._start()
            deadline = time.monotonic() + ANSWER_S
            try:
                self._write(LENGTH.pack(len(request)) + request, deadline)
                (length,) = LENGTH.unpack(self._read(LENGTH.size, deadline))
                reply: dict[str, Any] = json.loads(self._read(min(length, _MAX_REPLY), deadline))
                return reply
            except TimeoutError as error:
                self.close()
                raise _unusable(place, f"it was not rendered within {ANSWER_S:g} s") from error
            except (OSError, EOFError, ValueError) as error:
                raise self._ended(place) from error

    def _ended(self, place: str) -> FlowEdgeError:
        """The error for a worker that ended in a rendering."""
        process, code = self._process, None
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # `close` ends it
                code = process.wait(_END_S)
        self.close()
        if code == -signal.SIGXCPU:
            return _unusable(place, f"it takes more than {CPU_S} s of CPU time")
        return _unusable(place, f"its rendering ended the process that renders (exit status {code})")

    def _start(self) -> None:
        self.close()
        ours, theirs = socket.socketpair()
        # Isolated: the worker needs the installed Jinja, and nothing else of its user.
        command = [sys.executable, "-I", "-B", "-c", _RUN, str(_WORKER), *_PACKAGES]
        with theirs:
            self._process = subprocess.Popen(
                command,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                env={"LC_ALL": "C.UTF-8"},
            )
        self._link, self._owner = ours, os.getpid()

    def _write(self, data: bytes, deadline: float) -> None:
        link = self._linked(deadline)
        link.sendall(data)

    def _read(self, size: int, deadline: float) -> bytes:
        parts: list[bytes] = []
        while size:
            part = self._linked(deadline).recv(min(size, _PIECE))
            if not part:
                raise EOFError
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _linked(self, deadline: float) -> socket.socket:
        """The socket to the worker, whose next operation ends at the deadline."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if self._link is None:
            raise EOFError
        self._link.settimeout(left)
        return self._link


def _unusable(place: str, reason: str) -> CheckpointError:
    return CheckpointError(
        f"the chat template of {place} cannot be used: {reason}; correct the template, or give another model"
    )


RENDERER = TemplateRenderer()
"""The renderer of this process."""
atexit.register(RENDERER.close)
