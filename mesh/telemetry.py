"""Logs, metrics, and how the process itself is doing: loop lag and collection pauses.

One log schema: JSON lines on standard error with time, level, service, process, event, then fields. Ids go into
fields, payloads nowhere. Must not decide anything, and must never end a process because a line cannot be written.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from datetime import UTC, datetime
from typing import Any
from wsgiref.simple_server import WSGIServer

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from structlog.typing import EventDict, FilteringBoundLogger, WrappedLogger

from mesh.errors import StartError

LEVELS: Mapping[str, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_STANDARD_ERROR = 2
_FIRST_KEYS = ("time", "level", "service", "process", "event")
LAG_INTERVAL_S = 0.5
_PAUSES_TEXT = (
    "Garbage collections since the process was ready. One comes for every 20,000 objects that outlive their making, "
    "and for every 500 sessions that come to a gateway: 0 means that there were fewer."
)
_LONGEST_TEXT = "Longest garbage collection since the process was ready; 0 where there was none."
_LAG_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


# ---------------------------------------------------------------- logs


def configure_logs(service: str, level: str, *, process: str = "", descriptor: int = _STANDARD_ERROR) -> None:
    """Sends all logs of this process, also those of libraries, to one place in one schema.

    Args:
        service: name of the service.
        level: lowest level that is written: debug, info, warning or error.
        process: name of the process; the service's when left out.
        descriptor: open file descriptor to write to; standard error when left out.
    """
    number = LEVELS[level]

    def name(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        event.setdefault("service", service)
        event.setdefault("process", process or service)
        return event

    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            _add_time,
            name,
            structlog.processors.format_exc_info,
            _render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=lambda *_: _LineLogger(descriptor),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    for old in [item for item in root.handlers if isinstance(item, _StandardBridge)]:
        root.removeHandler(old)
    root.addHandler(_StandardBridge())
    # Libraries are heard from warnings up: their finer levels are about themselves.
    root.setLevel(max(number, logging.WARNING))


def logger() -> FilteringBoundLogger:
    """Returns the logger: `logger().info("event_name", some_id=...)`. Cheap; need not be kept."""
    bound: FilteringBoundLogger = structlog.get_logger()
    return bound


def path_tracer() -> Callable[..., None]:
    """Returns what logs one step on the way of one piece of work: `trace(step, **fields)`, event "path".

    Dear at load, so services ask for it only when the setting `trace_log` is on.
    """
    log = logger()

    def trace(step: str, **fields: object) -> None:
        log.info("path", step=step, **fields)

    return trace


class _LineLogger:
    """Writes each line with one system call, so that lines of several processes in one file never mix."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def msg(self, line: bytes) -> None:
        # A full disk or a closed pipe must not end the work that is being logged.
        with contextlib.suppress(OSError):
            os.write(self._descriptor, line)

    debug = info = warning = error = critical = exception = log = msg


class _StandardBridge(logging.Handler):
    """Passes what libraries log through the standard module on to our schema."""

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = {"logger": record.name}
        if record.exc_info and record.exc_info[0] is not None:
            fields["exc_info"] = record.exc_info
        # The bound logger takes its own level names only.
        level = "error" if record.levelno >= logging.ERROR else "warning"
        if record.levelno < logging.WARNING:
            level = "info" if record.levelno >= logging.INFO else "debug"
        try:
            text = record.getMessage()
        except Exception:  # A library's broken format must not break its caller.
            text = str(record.msg)
        getattr(logger(), level)("library", text=text, **fields)


def _add_time(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    event["time"] = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return event


def _render(_: WrappedLogger, __: str, event: MutableMapping[str, Any]) -> bytes:
    ordered = {key: event.pop(key) for key in _FIRST_KEYS if key in event}
    # Pure ASCII, so neither a line feed nor a terminal escape (C1 included) can leave the line it is in.
    text = json.dumps({**ordered, **event}, default=str, separators=(",", ":"), skipkeys=True)
    return text.replace("\x7f", "\\u007f").encode("ascii") + b"\n"


# ---------------------------------------------------------------- metrics


class Telemetry:
    """The metrics of one process, named `heliograph_<service>_<what>_<unit>`."""

    def __init__(self, service: str) -> None:
        self.registry = CollectorRegistry()
        self._prefix = f"heliograph_{service}".replace("-", "_")
        self._server: tuple[WSGIServer, threading.Thread] | None = None
        ProcessCollector(registry=self.registry)
        self._lag = self.histogram("loop_lag_seconds", "How late the event loop wakes up.", buckets=_LAG_BUCKETS_S)
        self.dependency_up = self.gauge(
            "dependency_up", "Whether a store outside the process answers: 1, or 0 when it is gone.", ["dependency"]
        )
        self.clock_apart = self.gauge(
            "clock_apart_seconds",
            "How far the machine's clock was set ahead of the time this process goes by; beyond 0.5 it takes no work.",
        )
        self.clock_peer_apart = self.gauge(
            "clock_peer_apart_seconds",
            "How far presence's clock is ahead of this process's, where both are compared (delivery).",
        )
        self._pauses = _CollectionPauses(self._prefix)
        self.registry.register(self._pauses)

    def counter(self, what: str, text: str, labels: Sequence[str] = ()) -> Counter:
        """Declares a counter; `what` ends in its unit, without `_total`."""
        return Counter(f"{self._prefix}_{what}", text, labels, registry=self.registry)

    def gauge(self, what: str, text: str, labels: Sequence[str] = ()) -> Gauge:
        """Declares a gauge; `what` ends in its unit."""
        return Gauge(f"{self._prefix}_{what}", text, labels, registry=self.registry)

    def histogram(
        self, what: str, text: str, labels: Sequence[str] = (), *, buckets: Sequence[float] = Histogram.DEFAULT_BUCKETS
    ) -> Histogram:
        """Declares a histogram; `what` ends in its unit."""
        return Histogram(f"{self._prefix}_{what}", text, labels, buckets=buckets, registry=self.registry)

    def serve(self, port: int) -> int:
        """Answers /metrics on the loopback address and returns the port; 0 takes any free one.

        Raises:
            StartError: the port is taken or not allowed.
        """
        try:
            server, thread = start_http_server(port, addr="127.0.0.1", registry=self.registry)
        except OSError as error:
            raise StartError(
                f"metrics_port {port}: {error.strerror}; free it, choose another one, or 0 for none"
            ) from None
        self._server = (server, thread)
        return server.server_port

    def watch_collections(self) -> None:
        """Begins to measure the pauses of the garbage collector."""
        if self._pauses.observe not in gc.callbacks:
            gc.callbacks.append(self._pauses.observe)

    async def run_loop_lag(self) -> None:
        """Measures, until cancelled, how much later than asked for the event loop wakes up."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LAG_INTERVAL_S
            await asyncio.sleep(LAG_INTERVAL_S)
            self._lag.observe(max(0.0, loop.time() - due))

    def close(self) -> None:
        """Stops answering and measuring; the numbers stay readable."""
        if self._pauses.observe in gc.callbacks:
            gc.callbacks.remove(self._pauses.observe)
        if self._server is not None:
            server, thread = self._server
            self._server = None
            closing = threading.Thread(target=server.shutdown)
            closing.start()
            # The server looks up only twice a second; a connection makes it look now.
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", server.server_port), timeout=1.0).close()
            closing.join()
            server.server_close()
            thread.join()


class _CollectionPauses(Collector):
    """Counts the garbage collector's pauses in plain numbers.

    Not in metric objects: a collection may begin while this thread reads a metric under its lock, and the callback
    would wait for that lock for ever.
    """

    def __init__(self, prefix: str, now: Callable[[], float] = time.perf_counter) -> None:
        self._prefix = prefix
        self._now = now
        self._began = 0.0
        self._count = [0, 0, 0]
        self._sum_s = 0.0
        self._longest_s = 0.0

    def observe(self, phase: str, details: Mapping[str, int]) -> None:
        """Called by the collector at its start and stop."""
        if phase == "start":
            self._began = self._now()
            return
        pause = self._now() - self._began
        self._count[min(details["generation"], 2)] += 1
        self._sum_s += pause
        self._longest_s = max(self._longest_s, pause)

    def collect(self) -> Iterable[Metric]:
        """Returns the numbers as metrics."""
        name = f"{self._prefix}_collection"
        pauses = CounterMetricFamily(f"{name}_pauses", _PAUSES_TEXT, labels=["generation"])
        for generation, count in enumerate(self._count):
            pauses.add_metric([str(generation)], count)
        yield pauses
        yield CounterMetricFamily(f"{name}_pause_seconds", "Time spent in garbage collections.", value=self._sum_s)
        yield GaugeMetricFamily(f"{name}_pause_max_seconds", _LONGEST_TEXT, value=self._longest_s)
