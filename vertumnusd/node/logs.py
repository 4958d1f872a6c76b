"""Logging: one event a line, ``key=value``. Prompts are never logged.

Text on a terminal or a pipe, JSON with ``--log-format json``; under systemd each line starts with
the journal's priority mark.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any, TextIO, cast

import structlog

PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}


def set_up_logs(form: str, level: str) -> None:
    """``form``: "text" or "json"; ``level``: the least severe level to show."""
    in_journal = "JOURNAL_STREAM" in os.environ and not sys.stderr.isatty()
    processors: list[Any] = [structlog.processors.add_log_level]
    if not in_journal:
        processors.append(structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False))
    if form == "json":
        processors.append(structlog.processors.JSONRenderer())
    else:
        processors.append(
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty() and "NO_COLOR" not in os.environ
            )
        )
    if in_journal:
        processors.append(_mark_priority)
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _Lossy(sys.stderr))),
        cache_logger_on_first_use=False,
    )


class _Lossy:
    """A file that loses lines where its disk is full or its reader has gone: a node serves on."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._file.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._file.flush()


def _mark_priority(_: Any, level: str, line: MutableMapping[str, Any] | str) -> str:
    return f"<{PRIORITIES.get(level, 6)}>{line}"
