"""What the kernel knows of a thread: how long it ran, and how long it wanted to run and could not.

``/proc/PID/schedstat`` counts both in nanoseconds for the main thread of a process, which in a rank
is the engine's. Time spent ready but waiting for a core is time that somebody else took: a
prefill with more than a trace of it says something about the neighbours, not about the model. Wall
time alone cannot tell that, and CPU time alone cannot time ranks that sleep at a barrier.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Stat(NamedTuple):
    """Seconds since the process started."""

    ran_s: float
    waited_s: float  # ready to run, on no core

    def since(self, before: Stat) -> Stat:
        return Stat(self.ran_s - before.ran_s, self.waited_s - before.waited_s)


def kernel_counts() -> bool:
    """Whether this kernel keeps these figures; some sandboxes do not."""
    return Path("/proc/self/schedstat").exists()


def thread_stat(pid: int) -> Stat:
    """Of the main thread of a process. OSError if it is gone."""
    ran_ns, waited_ns, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    return Stat(int(ran_ns) / 1e9, int(waited_ns) / 1e9)
