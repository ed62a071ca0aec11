"""The process that renders chat templates, started as a script. It imports Jinja and the standard library.

A request on standard input and a reply on standard output are JSON objects, each with its length in bytes
(four, big-endian) in front. The environment of the templates is that of transformers' `apply_chat_template`.
"""

from __future__ import annotations

import datetime
import functools
import json
import resource
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

LENGTH = struct.Struct("!I")
_MEMORY = 256 << 20  # bytes that the process may take beside those it has at its start
_ERROR_LENGTH = 300  # characters of a template's own message that are passed on


class TextTooLongError(Exception):
    """A text that grew beyond its limit."""


class GenerationBlock(Extension):
    """The block {% generation %}, which marks answers for training and changes no text."""

    tags = {"generation"}  # noqa: RUF012 (declared so by Jinja)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class PublicNamespace(Namespace):
    """Jinja's `namespace`, without names that begin with an underscore."""

    def __init__(*args: Any, **values: Any) -> None:
        self, *rest = args
        attributes = dict(*rest, **values)
        for name in attributes:
            _check_public(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_public(name)
        super().__setitem__(name, value)


def _check_public(name: Any) -> None:
    if str(name).startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r}")


def _raise(message: Any) -> NoReturn:
    raise TemplateError(str(message))


def _dict(*args: Any, **values: Any) -> dict[Any, Any]:
    return dict(*args, **values)


def _json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


@functools.lru_cache(maxsize=8)
def _compiled(template: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationBlock]
    )
    environment.filters["tojson"] = _json
    environment.globals |= {
        "raise_exception": _raise,
        "strftime_now": lambda form: datetime.datetime.now().strftime(form),
        "dict": _dict,
        "namespace": PublicNamespace,
    }
    return environment.from_string(template)


def _render(template: str, values: dict[str, Any], limit: int) -> str:
    """Render a template; raise TextTooLongError when the text has more than `limit` characters."""
    parts: list[str] = []
    for part in _compiled(template).generate(**values):
        limit -= len(part)
        if limit < 0:
            raise TextTooLongError
        parts.append(part)
    return "".join(parts)


def _reply(request: dict[str, Any]) -> dict[str, str]:
    try:
        return {"text": _render(request["template"], request["values"], request["limit"])}
    except TextTooLongError:
        return {"kind": "size", "error": f"its text has more than {request['limit']} characters"}
    except MemoryError:
        return {"kind": "memory", "error": f"it needs more than {_MEMORY >> 20} MiB of memory"}
    except (TemplateSyntaxError, RecursionError) as error:
        return {"kind": "program", "error": _message(error)}
    # A template is the checkpoint's own program: its errors are of any type, and the next request is another.
    except Exception as error:  # noqa: BLE001
        return {"kind": "refused", "error": _message(error)}


def _message(error: Exception) -> str:
    text = str(error)[:_ERROR_LENGTH] or type(error).__name__
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _limit_memory() -> None:
    if sys.platform == "linux":  # the only system whose limit counts what the process has
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * resource.getpagesize() + _MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _limit_seconds(seconds: int) -> None:
    """Have the system end this process after `seconds` more seconds of CPU time."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(usage.ru_utime + usage.ru_stime) + 1 + seconds, hard))


def serve(read: Callable[[int], bytes], write: Callable[[bytes], object]) -> None:
    """Answer requests until the input ends."""
    while len(head := read(LENGTH.size)) == LENGTH.size:
        request = json.loads(read(LENGTH.unpack(head)[0]))
        _limit_seconds(request["cpu_s"])
        reply = json.dumps(_reply(request)).encode()
        write(LENGTH.pack(len(reply)) + reply)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _limit_memory()
    with open(sys.stdout.fileno(), "wb", buffering=0) as _output:  # noqa: PTH123 (a descriptor)
        serve(sys.stdin.buffer.read, _output.write)
