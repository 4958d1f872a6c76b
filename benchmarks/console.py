"""What the console costs: 64 workers, four updates a second that change every one of them.

A feed server of this script's and ``vertumnusd tui`` in a terminal of 160 x 50 cells (a pty), on
every page in turn. ``cpu_share``: user and system time of the console over wall time, of the page
with the most; ``memory_mib``: its peak; ``first_paint_cpu_s``: its CPU time until the first page is
written; ``quit_cpu_s`` and ``quit_wall_s``: from the key to its end, the largest over a page, help,
a filter being typed, and a node that is gone; ``deltas_cpu_s``: CPU time of 10,000 deltas to the
model. Targets: 0.05, 120 MiB, 1.5 s, 0.5 s, 1 s. CPU time, because walls are disturbed on a shared
machine. The ratio is the largest of the figures over its target.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import os
import pty
import select
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
from harness import result, say
from vertumnus_tui.model import Model
from websockets.asyncio.server import ServerConnection, unix_serve
from websockets.exceptions import ConnectionClosed

from vertumnusd.messages import EntryChanges, FeedDelta, FeedSnapshot

ROOT = Path(__file__).resolve().parent.parent
WORKERS, DEGREE = 64, 4
INTERVAL_S = 0.25
PAGE_S = 5.0
DELTAS = 10_000
TARGETS = {"cpu_share": 0.05, "memory_mib": 120.0, "first_paint_cpu_s": 1.5}
TARGETS |= {"quit_cpu_s": 0.5, "deltas_cpu_s": 1.0}


def worker(n: int, beat: int) -> dict[str, Any]:
    ranks = list(range(n * DEGREE, (n + 1) * DEGREE))
    return {
        **{"name": f"CP{DEGREE}[{ranks[0]}-{ranks[-1]}]", "degree": DEGREE, "ranks": ranks},
        **{"state": "serving", "ranks_down": [], "epoch": n, "blocked": "", "waiting": beat % 7},
        **{"queue_s": (n + beat) % 40 / 10, "running": [f"request-{n}"]},
        **{"input_tokens": 1000 + beat, "cached_tokens": 500},
    }


def request(n: int, beat: int) -> dict[str, Any]:
    return {
        **{"request": f"request-{n}", "phase": "prefilling", "worker": worker(n, 0)["name"]},
        **{"input_tokens": 9000, "predicted_s": 3.0, "accepted_at": float(n), "attempt": 0},
        **{"layers_done": beat % 48, "layers": 48},
    }


def event(n: int, beat: int) -> dict[str, Any]:
    return {
        **{"t": beat * INTERVAL_S, "type": "Placed", "term": 1, "epoch": 1, "degree": DEGREE},
        **{"request": f"request-{n}", "worker": worker(n, 0)["name"], "preferred_degree": 4},
        **{"input_tokens": 9000, "cached_tokens": 100, "queue_s": 1.0, "service_s": 2.0},
        **{"gpu_price_s": 0.0, "cost_s": 3.0},
    }


def snapshot() -> FeedSnapshot:
    cluster = {
        **{"term": 1, "epoch": 1, "composition": f"{WORKERS}CP{DEGREE}", "node": "bench"},
        "workers": [worker(n, 0) for n in range(WORKERS)],
        "requests": [request(n, 0) for n in range(WORKERS)],
        "homes": [{"base": n * 2, "ranks": [n * 2, n * 2 + 1]} for n in range(WORKERS * 2)],
        "totals": {"submitted": 0},
        "slo": {"requests": 1, "recent_ttft_s": {"p50": 0.1, "p99": 1.0}},
    }
    return FeedSnapshot(0, 0.0, time.time(), cluster)


def delta(beat: int) -> FeedDelta:
    every = range(WORKERS)
    entries = {
        "workers": EntryChanges([worker(n, beat) for n in every]),
        "requests": EntryChanges([request(n, beat) for n in every]),
    }
    changed = {"totals": {"submitted": beat * 5}}
    events = [event(n, beat) for n in range(5)]
    return FeedDelta(beat, beat * INTERVAL_S, changed, entries, events)


async def feed(websocket: ServerConnection) -> None:
    with contextlib.suppress(ConnectionClosed):
        await websocket.send(msgspec.json.encode(snapshot()).decode())
        for beat in itertools.count(1):
            await asyncio.sleep(INTERVAL_S)
            await websocket.send(msgspec.json.encode(delta(beat)).decode())


@contextlib.contextmanager
def node(path: Path):  # type: ignore[no-untyped-def]
    """A feed server in a thread of its own."""
    ready, done = threading.Event(), threading.Event()

    async def main() -> None:
        async with unix_serve(feed, str(path)):
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    ready.wait()
    try:
        yield
    finally:
        done.set()
        thread.join()


class Terminal:
    """The console in a pty."""

    def __init__(self, socket: Path) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))
        command = [sys.executable, "-m", "vertumnusd", "tui", "--socket", str(socket)]
        path = os.pathsep.join([str(ROOT), str(ROOT / "tui")])
        environment = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": path}
        files = {"stdin": slave, "stdout": slave, "stderr": slave}
        self.process = subprocess.Popen(command, env=environment, start_new_session=True, **files)
        os.close(slave)

    def read_for(self, seconds: float, words: bytes = b"") -> bytes:
        """What it writes, until ``words`` are among it."""
        end, written = time.monotonic() + seconds, b""
        while (left := end - time.monotonic()) > 0 and (not words or words not in written):
            if select.select([self._master], [], [], left)[0]:
                try:
                    written += os.read(self._master, 65536)
                except OSError:  # it has ended
                    break
        return written

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_mib(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024

    def end(self) -> tuple[float, float]:
        """Seconds until it has ended: wall, CPU."""
        began, cpu_s = time.monotonic(), self.cpu_s()
        self.press(b"\x03")
        ended = threading.Event()
        threading.Thread(target=lambda: self._drain(ended)).start()
        _, status, usage = os.wait4(self.process.pid, 0)
        wall_s = time.monotonic() - began
        ended.set()
        assert status == 0
        return wall_s, usage.ru_utime + usage.ru_stime - cpu_s

    def _drain(self, ended: threading.Event) -> None:
        """A terminal that is not read would keep the console from writing its last words."""
        while not ended.is_set():
            self.read_for(0.05)
        os.close(self._master)


def measure(socket: Path) -> dict[str, float]:
    facts: dict[str, float] = {}
    with node(socket):
        terminal = Terminal(socket)
        assert b"CP4" in terminal.read_for(60, b"CP4[0-3]")
        facts["first_paint_cpu_s"] = terminal.cpu_s()
        terminal.read_for(2)
        shares = []
        for page in b"123456":
            terminal.press(bytes([page]))
            terminal.read_for(1)
            cpu_s, began = terminal.cpu_s(), time.monotonic()
            terminal.read_for(PAGE_S)
            shares.append((terminal.cpu_s() - cpu_s) / (time.monotonic() - began))
            say(f"page {chr(page)}: {shares[-1]:.1%} of a core")
        facts["cpu_share"] = max(shares)
        facts["memory_mib"] = terminal.peak_mib()
        ends = [terminal.end()]
        for keys in (b"?", b"5/ab"):
            terminal = Terminal(socket)
            terminal.read_for(60, b"CP4[0-3]")
            terminal.press(keys)
            terminal.read_for(1)
            ends.append(terminal.end())
    terminal = Terminal(socket)
    terminal.read_for(60, b"again in")
    ends.append(terminal.end())
    say(f"ends, wall and CPU s: {', '.join(f'{wall:.2f} {cpu:.2f}' for wall, cpu in ends)}")
    facts["quit_wall_s"], facts["quit_cpu_s"] = (max(times) for times in zip(*ends, strict=True))
    return facts


def apply_deltas() -> float:
    """CPU seconds of a burst to the model."""
    model = Model()
    model.apply(snapshot())
    frames = [
        FeedDelta(n, n / 1000, {}, {"workers": EntryChanges([worker(n % WORKERS, n)])})
        for n in range(1, DELTAS + 1)
    ]
    began = time.process_time()
    for frame in frames:
        model.apply(frame)
    return time.process_time() - began


def main() -> None:
    facts = {"deltas_cpu_s": apply_deltas()}
    with tempfile.TemporaryDirectory() as folder:
        facts |= measure(Path(folder) / "admin.sock")
    ratio = max(facts[name] / target for name, target in TARGETS.items())
    result(**{name: round(value, 3) for name, value in facts.items()}, ratio=ratio)


if __name__ == "__main__":
    main()
