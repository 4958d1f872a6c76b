"""A peer to be measured in the same run: a script in a process of its own, asked line by line.

``ai-dynamo-runtime`` has dependencies of its own, so it may live in another environment; an
interpreter that has it is named by ``--peer PYTHON``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness import say

READY = "ready"


def arguments_of(description: str | None) -> argparse.Namespace:
    """``trace`` (a path or None) and ``peer`` of the command line."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("trace", nargs="?", type=Path, help="a Mooncake trace")
    parser.add_argument("--peer", default=sys.executable, help="python with ai-dynamo-runtime")
    return parser.parse_args()


@contextmanager
def peer(
    python: str, script: str, requests: Iterable[Any]
) -> Iterator[Callable[[str], Any] | None]:
    """Ask the script by calling this with a line; it answers with JSON. None if it is not there.

    Its argument is a file with the requests, one of JSON a line; it says READY when it has them.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(json.dumps(request) + "\n" for request in requests)
        file.flush()
        with subprocess.Popen(
            [python, "-c", script, file.name],
            env={**os.environ, "DYN_LOG": "off"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            line = _answer(process)
            if line == READY:
                yield lambda question: _ask(process, question)
                process.communicate()
            else:
                say(f"no peer: {line}")
                yield None


def _ask(process: subprocess.Popen[str], question: str) -> Any:
    assert process.stdin is not None
    process.stdin.write(question + "\n")
    process.stdin.flush()
    return json.loads(_answer(process))


def _answer(process: subprocess.Popen[str]) -> str:
    """The next line that is an answer, as it may log between them; the last if it has ended."""
    assert process.stdout is not None
    line = "it said nothing"
    for line in process.stdout:
        # Libraries put "[W" before their warnings.
        if line.startswith(("[", READY)) and not line.startswith("[W"):
            break
    return line.strip()
