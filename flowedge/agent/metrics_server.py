"""An HTTP server for metrics, at /metrics."""

from __future__ import annotations

import logging
import socket
import threading
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from flowedge.network.address import join_address
from flowedge.network.ports import listening_error

PATH = "/metrics"
_OTHER_PORT = (
    "end that program, choose another port for metrics with metrics.port (0 chooses a free one), or set "
    "metrics.enabled to false"
)
STOP_S = 0.5
REQUEST_S = 10.0  # in which a client has to send its request

_log = logging.getLogger(__name__)


class MetricsServer:
    """Answers in threads of its own; `port` is the port it listens on."""

    def __init__(self, device: str, registry: CollectorRegistry, host: str, port: int) -> None:
        """port: 0 takes a free one. Raises DeviceError when it cannot listen there."""
        server = _Server6 if ":" in host else _Server
        try:
            self._server = make_server(host, port, _app(registry), server, handler_class=_Handler)
        except OSError as error:
            raise listening_error(error, host, port, device, _OTHER_PORT) from error
        self.port = int(self._server.server_port)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(STOP_S / 5,), name="metrics", daemon=True
        )
        self._thread.start()
        _log.info("device %s serves metrics at http://%s%s", device, join_address(host, self.port), PATH)

    def stop(self) -> None:
        """Stop listening; blocks for up to STOP_S."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(STOP_S)


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the name is http.server's)
        _log.debug(format, *args)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def server_bind(self) -> None:
        """Without the look-up of the host's name, which may take seconds and is not needed."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()


class _Server6(_Server):
    address_family = socket.AF_INET6


def _app(registry: CollectorRegistry) -> Any:
    metrics = make_wsgi_app(registry)

    def app(environment: dict[str, Any], start_response: Any) -> Any:
        if environment.get("PATH_INFO") != PATH:
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [f"metrics are at {PATH}\n".encode()]
        return metrics(environment, start_response)

    return app
