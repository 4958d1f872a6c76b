"""What a process frees, it keeps."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.ranks

# Counts the page faults of taking and freeing memory again and again.
SCRIPT = """
import ctypes, resource
from vertumnusd.rank.heap import keep_freed
keep_freed()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p

def layer():
    taken = [libc.malloc(20 << 20) for _ in range(4)]
    for memory in taken:
        libc.memset(ctypes.c_void_p(memory), 1, 20 << 20)
    for memory in reversed(taken):
        libc.free(ctypes.c_void_p(memory))

for _ in range(3):
    layer()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    layer()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
FAULTS = 1000  # were it given back each time, they would be 200,000


def test_memory_of_one_layer_serves_the_next() -> None:
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, check=True)
    assert int(run.stdout) < FAULTS
