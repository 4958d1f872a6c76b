"""One rank process: ``python -m vertumnusd.rank --fd N``, N being its socket to the daemon.

The daemon alone ends it, on purpose or by dying: signals of a terminal or a service manager are for
the daemon, and a rank that outlived it would keep a device busy for nobody.
"""

from __future__ import annotations

import argparse
import ctypes
import signal
import socket
from collections.abc import Callable
from typing import NoReturn

from vertumnusd.rank.heap import keep_freed
from vertumnusd.rank.link import Link

PR_SET_PDEATHSIG = 1


def run_rank(serve: Callable[[Link], NoReturn]) -> NoReturn:
    """The main function of every kind of rank; ``serve`` is its life."""
    parser = argparse.ArgumentParser(prog="python -m vertumnusd.rank", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="the socket to the daemon")
    arguments = parser.parse_args()
    live_with_the_daemon()
    link = Link(socket.socket(fileno=arguments.fd))
    try:
        serve(link)
    except Exception as error:
        link.fault(error)


def live_with_the_daemon() -> None:
    """Ignore what is meant for the daemon; die with the thread of it that started this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")


def serve(link: Link) -> NoReturn:
    """Become the rank that the first message describes."""
    # Torch takes seconds to import: the signals are settled before, and the daemon, which is
    # still loading weights meanwhile, sends its first message after.
    import torch

    from vertumnusd.rank.decode import DecodeRank
    from vertumnusd.rank.decoding import Decoding
    from vertumnusd.rank.engine import Engine
    from vertumnusd.rank.loop import PrefillRank

    keep_freed()
    torch.set_num_threads(1)
    start = link.read_start()
    rank: DecodeRank | PrefillRank
    if start.kind == "decode":
        rank = DecodeRank(start, link, Decoding)
    else:
        rank = PrefillRank(start, link, Engine)
    link.listen(rank.receive)
    rank.serve()


if __name__ == "__main__":
    run_rank(serve)
