"""Logs of one JSON object a line, for `--log-format json`: with the request, the inferlet and the tenant that a line is
about. Beside what the server logs anyway, each request, launch and end of an inferlet has a line. No line has a token,
an argument, a message or a result."""

from __future__ import annotations

import json
import logging
import time
from contextvars import ContextVar
from datetime import UTC, datetime

from pie_control.registry.entry import Entry
from pie_control.registry.registry import Registry

log = logging.getLogger("pie.inferlets")

REQUEST: ContextVar[str] = ContextVar("request", default="")
"""Id of the HTTP request or session in whose context something happens; "": of none."""


class JsonFormatter(logging.Formatter):
    """`extra={"about": {...}}` gives a record further fields."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request := REQUEST.get():
            fields["request"] = request
        fields |= getattr(record, "about", {})
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


class InferletLog:
    """Logs launches and ends. Belongs to the thread of the control loop."""

    def __init__(self, registry: Registry) -> None:
        self._requests: dict[str, str] = {}  # in which each inferlet was launched that has not ended; children too
        registry.on_launch.append(self._launched)
        registry.on_end.append(self._ended)

    def _launched(self, entry: Entry) -> None:
        self._requests[entry.id] = REQUEST.get() or self._requests.get(entry.parent or "", "")
        log.info("launched %s", entry.program.title, extra={"about": self._about(entry)})

    def _ended(self, entry: Entry) -> None:
        about = {
            **self._about(entry),
            "status": str(entry.status),
            "seconds": round(time.monotonic() - entry.started, 6),
            "cpu_seconds": round(entry.cpu_seconds, 6),
        }
        self._requests.pop(entry.id, None)
        log.info("ended %s", entry.program.title, extra={"about": about})

    def _about(self, entry: Entry) -> dict[str, object]:
        """What each line on it says."""
        about: dict[str, object] = {"inferlet": entry.id, "tenant": entry.standing.tenant.name}
        about["program"] = entry.program.hash
        if request := self._requests.get(entry.id):
            about["request"] = request
        if entry.parent:
            about["parent"] = entry.parent
        return about
