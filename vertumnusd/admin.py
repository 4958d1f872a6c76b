"""What operators type, ``vertumnusd split``, ``drain``, ``why`` …: HTTP to a running daemon.

On its own host by the unix socket, whose permissions are the operator's pass; from elsewhere by TCP
with an admin token. Exit status: 0 done, 1 refused or rolled back, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import getpass
import http.client
import json
import math
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from vertumnusd.admin_address import admin_socket_path
from vertumnusd.explain import explain
from vertumnusd.messages import MOST_HOLD_S

CONNECT_TIMEOUT_S = 5.0
UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}


class AdminError(Exception):
    """The daemon could not be reached, or did not do it; the message says why."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(str(self._path))


class Daemon:
    """A running daemon, as an operator reaches it."""

    def __init__(self, where: str, connection: http.client.HTTPConnection, token: str = "") -> None:
        self._where = where
        self._connection = connection
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    @classmethod
    def by_socket(cls, path: Path) -> Daemon:
        return cls(str(path), _UnixConnection(path))

    @classmethod
    def by_url(cls, text: str, token_file: Path | None) -> Daemon:
        """Raises AdminError for what is no address, and OSError."""
        url = urlsplit(text)
        if url.scheme != "http" or not url.hostname:
            raise AdminError(f"{text}: an address like http://127.0.0.1:8000 is expected")
        words = token_file.read_text().split() if token_file is not None else []
        connection = http.client.HTTPConnection(
            url.hostname, url.port or 80, timeout=CONNECT_TIMEOUT_S
        )
        return cls(text, connection, words[0] if words else "")

    def ask(self, method: str, path: str, content: object = None) -> dict[str, Any]:
        """One exchange. Raises :class:`AdminError`."""
        body = None if content is None else json.dumps(content)
        try:
            self._connection.connect()
            self._connection.sock.settimeout(None)  # a drain takes its time
            self._connection.request(method, path, body, self._headers)
            response = self._connection.getresponse()
            answer = json.load(response)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise AdminError(f"no daemon listens at {self._where}") from error
        except ConnectionError as error:
            raise AdminError(f"the daemon at {self._where} ended before it answered") from error
        except OSError as error:
            raise AdminError(f"{self._where}: {error.strerror or error}") from error
        except (ValueError, http.client.HTTPException) as error:
            raise AdminError(f"{self._where}: this is no vertumnusd: {error}") from error
        finally:
            self._connection.close()
        if response.status != 200:
            raise AdminError(str(answer.get("error", {}).get("message", f"HTTP {response.status}")))
        return dict(answer)


def convert(daemon: Daemon, arguments: argparse.Namespace) -> int:
    """``split`` and ``merge``: wait for the end, and print what happened."""
    order = {"workers": arguments.workers, "dry_run": arguments.dry_run}
    answer = daemon.ask("POST", f"/v1/admin/{arguments.command}", order)
    if arguments.json:
        print(json.dumps(answer, indent=2))
    for planned in answer.get("planned", []):
        _say(arguments, f"{_change(planned)}: drain of about {planned['predicted_drain_s']:.2f} s")
    converted = answer.get("converted", [])
    for operation in converted:
        _say(arguments, f"{_change(operation)}: {_ending(operation)}")
    return 0 if all(operation["outcome"] == "exposed" for operation in converted) else 1


def drain(daemon: Daemon, arguments: argparse.Namespace) -> int:
    """Wait until the workers run nothing any more."""
    order = {"workers": arguments.workers, "dry_run": arguments.dry_run}
    answer = daemon.ask("POST", "/v1/admin/drain", order)
    if arguments.json:
        print(json.dumps(answer, indent=2))
    for planned in answer.get("planned", []):
        running = " ".join(planned["running"]) or "nothing"
        _say(arguments, f"{planned['worker']} would end what it runs: {running}")
    drained = answer.get("drained", [])
    for ending in drained:
        if "drain_s" in ending:
            _say(arguments, f"{ending['worker']}: drained in {ending['drain_s']:.2f} s")
        else:
            _say(arguments, f"{ending['worker']}: given back before it was drained")
    return 0 if all("drain_s" in ending for ending in drained) else 1


def undrain(daemon: Daemon, arguments: argparse.Namespace) -> int:
    answer = daemon.ask("POST", "/v1/admin/undrain", {"workers": arguments.workers})
    if arguments.json:
        print(json.dumps(answer, indent=2))
    _say(arguments, f"serving again: {' '.join(answer['serving']) or 'none was drained'}")
    return 0


def hold(daemon: Daemon, arguments: argparse.Namespace) -> int:
    order = {"for_s": arguments.for_s, "by": whoami()}
    answer = daemon.ask("POST", "/v1/admin/hold", order)
    if arguments.json:
        print(json.dumps(answer, indent=2))
    for_s = arguments.for_s
    what = f"nothing begins by itself for {for_s:g} s" if for_s else "the controller goes on"
    _say(arguments, what)
    return 0


def reclaim(daemon: Daemon, arguments: argparse.Namespace) -> int:
    """Exit status 1 if it is needed wherever it lies, so that nothing goes."""
    homes, dry_run = arguments.homes or [], arguments.dry_run
    order = {"prefix": arguments.prefix, "homes": homes, "dry_run": dry_run}
    answer = daemon.ask("POST", "/v1/admin/reclaim", order)
    if arguments.json:
        print(json.dumps(answer, indent=2))
    found = answer["planned" if dry_run else "reclaimed"]
    verb = "would be deleted" if dry_run else "are being deleted"
    for each in found:
        what = f"{each['blocks']} blocks {verb}" if each["blocks"] else "needed now, nothing goes"
        _say(arguments, f"home {each['home']}: {what}")
    return 0 if any(each["blocks"] for each in found) else 1


def audit(daemon: Daemon, arguments: argparse.Namespace) -> int:
    """Exit status 1 if a rank did not answer, or holds other blocks than the trie claims."""
    answer = daemon.ask("POST", "/v1/admin/audit", {})
    if arguments.json:
        print(json.dumps(answer, indent=2))
    for rank in answer["ranks"]:
        _say(arguments, f"rank {rank['rank']}: {_audited(rank)}")
    return 0 if all(map(_is_exact, answer["ranks"])) else 1


def _audited(rank: dict[str, Any]) -> str:
    if not rank["answered"]:
        return "did not answer"
    if _is_exact(rank):
        return f"{rank['held_blocks']} blocks, all as claimed"
    return (
        f"{rank['held_blocks']} blocks, {rank['wrong_blocks']} claimed and not there,"
        f" {rank['unknown_blocks']} there and not claimed; corrected"
    )


def _is_exact(rank: dict[str, Any]) -> bool:
    return bool(rank["answered"]) and not rank["wrong_blocks"] and not rank["unknown_blocks"]


def why(daemon: Daemon, arguments: argparse.Namespace) -> int:
    answer = daemon.ask("GET", f"/v1/admin/why/{quote(arguments.what, safe='')}")
    if arguments.json:
        print(json.dumps(answer, indent=2))
    for line in explain(answer["why"]):
        _say(arguments, line)
    if not answer["why"]:
        _say(arguments, "there was none yet")
    return 0


def _change(operation: dict[str, Any]) -> str:
    return f"{' '.join(operation['before'])} → {' '.join(operation['after'])}"


def _ending(operation: dict[str, Any]) -> str:
    if operation["outcome"] != "exposed":
        return f"{operation['outcome']} in {operation['phase']}: {operation['reason']}"
    return (
        f"drained in {operation['drain_s']:.2f} s, switched in {operation['switch_s'] * 1e3:.1f} ms"
    )


def _say(arguments: argparse.Namespace, text: str) -> None:
    if not arguments.json:
        print(text)


def whoami() -> str:
    """Who gives an order, for those who wonder later."""
    try:
        return f"{getpass.getuser()} on {socket.gethostname()}"
    except (KeyError, OSError):  # a user without a name
        return socket.gethostname()


def duration(text: str) -> float:
    """``90``, ``90s``, ``30m`` or ``2h`` in seconds. ArgumentTypeError for anything else."""
    number, unit = (text[:-1], text[-1:]) if text[-1:] in UNITS_S else (text, "s")
    try:
        value = float(number) * UNITS_S[unit]
    except ValueError:
        value = math.nan
    if not 0 <= value <= MOST_HOLD_S:
        most = f"{MOST_HOLD_S / UNITS_S['h']:g}h at most"
        raise argparse.ArgumentTypeError(
            f"{text}: a time such as 90s, 30m or 2h is expected, {most}"
        )
    return value


def add_commands(commands: Any) -> None:
    """The parsers of all of them."""
    for kind, text in (
        ("split", "split workers in two, without a restart"),
        ("merge", "merge neighbouring workers into one"),
    ):
        parser = _add(commands, kind, text, convert)
        _add_workers(parser, "such as CP2[0-1]")
        _add_dry_run(parser)
    parser = _add(commands, "drain", "take workers out of service, once they are idle", drain)
    _add_workers(parser, "such as CP2[0-1]; or all, for the whole node")
    _add_dry_run(parser)
    parser = _add(commands, "undrain", "let drained workers serve again", undrain)
    _add_workers(parser, "such as CP2[0-1]; or all that are drained")
    parser = _add(commands, "hold", "begin no split, merge or copy automatically", hold)
    parser.add_argument(
        "--for",
        dest="for_s",
        type=duration,
        required=True,
        metavar="TIME",
        help="such as 90s, 30m, 2h; 0 ends it",
    )
    parser = _add(commands, "reclaim", "delete a cached prefix and what lies behind it", reclaim)
    parser.add_argument("prefix", help="as the console calls it, such as 5d0c2f7b")
    parser.add_argument(
        "--home", dest="homes", type=int, action="append", metavar="N", help="only from this one"
    )
    _add_dry_run(parser)
    _add(commands, "audit", "compare what the prefix trie claims with what ranks hold", audit)
    parser = _add(commands, "why", "the terms of a placement or reconfiguration", why)
    parser.add_argument("what", help="the id of an answer, last-reconfiguration, or last-decision")


def _add_workers(parser: Any, text: str) -> None:
    parser.add_argument("workers", nargs="+", metavar="WORKER", help=text)


def _add_dry_run(parser: Any) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done")


def _add(
    commands: Any, name: str, text: str, act: Callable[[Daemon, argparse.Namespace], int]
) -> Any:
    parser = commands.add_parser(name, help=text, allow_abbrev=False)
    parser.add_argument("--port", type=int, default=8000, help="of the daemon on this host")
    parser.add_argument("--socket", type=Path, help="its admin socket, if it is elsewhere")
    parser.add_argument("--url", help="by TCP instead, such as http://10.0.0.1:8000")
    parser.add_argument("--admin-token-file", type=Path, help="file whose first token is sent")
    parser.add_argument("--json", action="store_true", help="the answer as JSON")
    parser.set_defaults(run=lambda arguments: _run(arguments, act))
    return parser


def _run(arguments: argparse.Namespace, act: Callable[[Daemon, argparse.Namespace], int]) -> int:
    try:
        return act(_daemon(arguments), arguments)
    except BrokenPipeError:
        raise  # of our output, not of the daemon's
    except (AdminError, OSError) as error:
        print(f"vertumnusd {arguments.command}: {error}", file=sys.stderr)
        return 1


def _daemon(arguments: argparse.Namespace) -> Daemon:
    if arguments.url is not None:
        return Daemon.by_url(arguments.url, arguments.admin_token_file)
    return Daemon.by_socket(arguments.socket or admin_socket_path("", arguments.port))
