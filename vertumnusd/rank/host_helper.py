"""The one helper process of a host: loads the weights for all ranks and hosts their store.

``python -m vertumnusd.rank.host_helper --fd N``: N is one end of a socketpair; it speaks the frames
of ``frames.py``. The daemon sends LoadModel; the helper answers LoadProgress while it loads, then
Loaded (or RankFault), and stays, since the store must outlive the ranks. It ends when the daemon
closes its end. The daemon itself imports no torch, and a rank may die: hence a process of its own.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import socket
import time

import msgspec
import torch.distributed as dist

from vertumnusd.checkpoint import CheckpointError, model_info, resolve
from vertumnusd.frames import FrameReader, write_frame
from vertumnusd.messages import FromHelper, Loaded, LoadModel, LoadProgress, RankFault
from vertumnusd.rank.load import load, tensor_specs

PROGRESS_S = 0.1  # between two progress reports
NO_RANK = -1
PR_SET_PDEATHSIG = 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    sock = socket.socket(fileno=parser.parse_args().fd)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGTERM):  # the daemon decides when we end
        signal.signal(number, signal.SIG_IGN)
    reader = FrameReader(sock)
    frame = reader.read()
    status = 0
    if frame is not None:
        try:
            store = serve(sock, msgspec.msgpack.decode(frame, type=LoadModel))
            while reader.read() is not None:
                pass
            del store
        except (CheckpointError, OSError, RuntimeError, msgspec.MsgspecError) as error:
            _send(sock, RankFault(NO_RANK, f"host helper: {error}"))
            status = 1
    os._exit(status)  # the store's threads have nothing to finish


def serve(sock: socket.socket, order: LoadModel) -> dist.TCPStore:
    """Load the weights, open the store and say so. The store closes when it is dropped."""
    path = resolve(order.path)
    info = model_info(path, order.name, order.dtype)
    tensors, weights_bytes = tensor_specs(info)
    reported = time.monotonic()
    for loaded_bytes in load(path, info, order.weights_fd):
        if time.monotonic() - reported >= PROGRESS_S:
            reported = time.monotonic()
            _send(sock, LoadProgress(loaded_bytes, weights_bytes))
    store = open_store(order.host)
    _send(sock, Loaded(info, tensors, weights_bytes, store.port))
    return store


def open_store(host: str) -> dist.TCPStore:
    """A store that listens on ``host`` and no other address; torch by itself takes them all."""
    family, *_, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    listener = socket.create_server(address[:2], family=family)
    return dist.TCPStore(
        host,
        listener.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


def _send(sock: socket.socket, message: FromHelper) -> None:
    write_frame(sock, msgspec.msgpack.encode(message))


if __name__ == "__main__":
    main()
