"""``vertumnusd tui``: the console, or one look for a script."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from vertumnus_tui.link import FAILURES, Address, AddressError, explain, first_frame, parse_address
from vertumnus_tui.model import Model
from vertumnus_tui.page import LEAST_HEIGHT, LEAST_WIDTH
from vertumnus_tui.panel import Panel
from vertumnus_tui.playback import SPEEDS, Player, Recorder, RecordingError, read_recording
from vertumnus_tui.source import LiveSource, ReplaySource, Source
from vertumnus_tui.status import Live

EXIT_DONE, EXIT_FAULT, EXIT_USAGE = range(3)
ANSWER_S = 5.0


class UsageError(Exception):
    """The flags do not go together, or have a bad value."""


def tui(arguments: argparse.Namespace, admin_socket: Path) -> int:
    """Returns the exit status. ``admin_socket`` is looked at if no address is given."""
    try:
        _check(arguments)
        if arguments.once or arguments.json:
            with _reader_may_leave():
                return _look(arguments, admin_socket)
            return EXIT_DONE
        _run(arguments, admin_socket)
    except (UsageError, AddressError) as error:
        return _fail(str(error), EXIT_USAGE)
    except RecordingError as error:
        return _fail(str(error), EXIT_FAULT)


@contextmanager
def _reader_may_leave() -> Iterator[None]:
    """Whoever reads our output may have seen enough, as ``head`` does."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, status: int) -> int:
    print(f"vertumnusd tui: {message}", file=sys.stderr)
    return status


def _check(arguments: argparse.Namespace) -> None:
    if arguments.speed not in SPEEDS:
        speeds = ", ".join(f"{speed:g}" for speed in SPEEDS)
        raise UsageError(f"--speed {arguments.speed:g}: {speeds} are allowed")
    if not arguments.at >= 0:
        raise UsageError(f"--at {arguments.at:g}: 0 or more is expected")
    if arguments.replay and (arguments.url or arguments.record or arguments.admin):
        raise UsageError("--replay goes with neither --url, --record nor --admin")
    if arguments.url and arguments.socket:
        raise UsageError("--url or --socket, not both")
    if arguments.once and arguments.json:
        raise UsageError("--once or --json, not both")
    if arguments.record and (arguments.once or arguments.json):
        raise UsageError("--record follows a node; --once and --json look at it once")


def _address(arguments: argparse.Namespace, admin_socket: Path) -> Address:
    token = ""
    if arguments.admin_token_file is not None:
        try:
            token = (arguments.admin_token_file.read_text().split() or [""])[0]
        except (OSError, ValueError) as error:
            raise UsageError(f"--admin-token-file: {error}") from error
    if arguments.url:
        return parse_address(arguments.url, token)
    return Address(socket=arguments.socket or admin_socket)


def _player(arguments: argparse.Namespace) -> Player:
    player = Player(read_recording(arguments.replay))
    player.speed = arguments.speed
    player.seek(arguments.at)
    return player


# --- one look


def _look(arguments: argparse.Namespace, admin_socket: Path) -> int:
    if arguments.replay:
        source: Source = ReplaySource(_player(arguments))
        model, status = source.model, source.status
    else:
        address = _address(arguments, admin_socket)
        try:
            model = asyncio.run(_first_look(address))
        except FAILURES as error:
            return _fail(explain(error, address), EXIT_FAULT)
        status = Live()
    if arguments.json:
        print(json.dumps(model.raw(), indent=2))
        return EXIT_DONE
    panel = Panel(model, ascii=arguments.ascii)
    panel.status = status
    panel.go(arguments.page)
    print(panel.text(*_size(arguments.size)), end="")
    return EXIT_DONE


async def _first_look(address: Address) -> Model:
    model = Model()
    async with asyncio.timeout(ANSWER_S):
        model.apply(await first_frame(address))
    return model


def _size(text: str) -> tuple[int, int]:
    """``160x50``; without, the terminal's, and at least what a page needs."""
    if not text:
        columns, lines = shutil.get_terminal_size((LEAST_WIDTH, LEAST_HEIGHT))
        return max(columns, LEAST_WIDTH), max(lines - 1, LEAST_HEIGHT)
    found = re.fullmatch(r"(\d{2,3})x(\d{2,3})", text)
    size = (int(found[1]), int(found[2])) if found else (0, 0)
    if size[0] < LEAST_WIDTH or size[1] < LEAST_HEIGHT:
        raise UsageError(f"--size {text}: {LEAST_WIDTH}x{LEAST_HEIGHT} to 999x999 is expected")
    return size


# --- the console


def _run(arguments: argparse.Namespace, admin_socket: Path) -> NoReturn:
    from vertumnus_tui.app import ConsoleApp

    if sys.__stderr__ is None or not (sys.stdin.isatty() and sys.__stderr__.isatty()):
        raise UsageError("this is no terminal; --once and --json print without one")
    if arguments.replay:
        source: Source = ReplaySource(_player(arguments))
    else:
        recorder = Recorder(arguments.record) if arguments.record else None
        source = LiveSource(_address(arguments, admin_socket), recorder)
    panel = Panel(source.model, ascii=arguments.ascii, admin=arguments.admin)
    panel.go(arguments.page)
    for name in ("COLUMNS", "LINES"):  # exported by some shells; the terminal itself knows better
        os.environ.pop(name, None)
    app = ConsoleApp(source, panel)
    app.run()
    _leave(app.return_code or EXIT_DONE)


def _leave(status: int) -> NoReturn:
    """End now: everything is written and the terminal is given back, and taking the interpreter
    apart would keep an operator waiting several times longer than the console needs to end."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
