"""The one command, ``vertumnusd``: ``serve`` runs a node, the others look at one or steer it.

Exit status: 0 done or drained, 1 fault, 2 usage or configuration, 3 port in use, 4 ranks failed to
start. Flags win over the file, the file over the defaults.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from vertumnusd import __version__
from vertumnusd.admin import add_commands as add_admin_commands
from vertumnusd.admin_address import admin_socket_path
from vertumnusd.compiled import DECISIONS
from vertumnusd.config import Config, ConfigError, load_config, load_profile

EXIT_FAULT, EXIT_USAGE = 1, 2
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class Parser(argparse.ArgumentParser):
    """Names the nearest known flag or command when one is wrong, or all flags that there are."""

    def parse_known_args(
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """A command refuses strangers itself, not the top: these are its flags to be named."""
        arguments, strangers = super().parse_known_args(args, namespace)
        if strangers:
            self.error(f"unrecognized arguments: {' '.join(strangers)}")
        return arguments, strangers

    def error(self, message: str) -> NoReturn:
        wrong = re.search(r"(?:unrecognized arguments: |invalid choice: ')([^ ']+)", message)
        hint = self._hint(wrong[1].partition("=")[0]) if wrong else ""
        self.exit(EXIT_USAGE, f"{self.prog}: {message}{hint}\n")

    def _hint(self, wrong: str) -> str:
        flags = [flag for action in self._actions for flag in action.option_strings]
        words = [word for action in self._actions for word in action.choices or ()]
        if near := difflib.get_close_matches(wrong, flags + words, 1):
            return f"; did you mean {near[0]}?"
        return f"; known are: {', '.join(sorted(flags))}" if wrong.startswith("-") else ""


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    try:
        status = int(arguments.run(arguments))
        sys.stdout.flush()
        return status
    except ConfigError as error:
        print(f"vertumnusd: {error}", file=sys.stderr)
        return EXIT_USAGE
    except BrokenPipeError:  # who reads our output has seen enough, as ``head`` does
        _write_no_more()
        return 0
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        print(f"vertumnusd {arguments.command}: {error}", file=sys.stderr)
        _write_no_more()
        return EXIT_FAULT
    except KeyboardInterrupt:
        return 130


def _write_no_more() -> None:
    """What is not written yet goes nowhere, so that the interpreter can end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> Parser:
    parser = Parser(prog="vertumnusd", description=__doc__.splitlines()[0], allow_abbrev=False)
    version = f"vertumnusd {__version__} (decisions {DECISIONS})"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    _add_serve(commands)
    _add_demo(commands)
    _add_profile(commands)
    _add_simulate(commands)
    _add_calibrate(commands)
    _add_reproduce(commands)
    _add_status(commands)
    add_admin_commands(commands)
    _add_tui(commands)
    _add_config(commands)
    return parser


def _add_serve(commands: Any) -> None:
    serve = commands.add_parser("serve", help="run this node's daemon", allow_abbrev=False)
    serve.add_argument("model", nargs="?", help="a .gguf file, a checkpoint folder, or a name")
    serve.add_argument("--config", type=Path, help="TOML file; see etc/vertumnusd.toml")
    serve.add_argument("--host", help="address to listen on")
    serve.add_argument("--port", type=int, help="port to listen on")
    serve.add_argument("--api-key-file", help="file with one API key a line")
    serve.add_argument("--log-format", choices=("text", "json"), default="text")
    serve.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    serve.set_defaults(run=_serve)


def _add_demo(commands: Any) -> None:
    demo = commands.add_parser("demo", help="the main job on a small model", allow_abbrev=False)
    demo.add_argument("--json", type=Path, metavar="FILE", help="also write the facts to FILE")
    demo.add_argument(
        "--record", type=Path, metavar="FILE", help="write what happens to FILE, for tui --replay"
    )
    demo.set_defaults(run=_demo)


def _add_profile(commands: Any) -> None:
    from vertumnusd.profile.arguments import add_profile

    text = "measure prefill times and fit Ê"
    parser = commands.add_parser("profile", help=text, allow_abbrev=False)
    add_profile(parser)
    parser.set_defaults(run=_profile)


def _add_simulate(commands: Any) -> None:
    from vertumnusd.simulate.arguments import add_simulate

    parser = commands.add_parser("simulate", help="replay a trace on GPUs", allow_abbrev=False)
    add_simulate(parser)
    parser.set_defaults(run=_simulate)


def _add_calibrate(commands: Any) -> None:
    from vertumnusd.simulate.arguments import add_calibrate

    text = "set thresholds by simulation, from a profile and a trace"
    parser = commands.add_parser("calibrate", help=text, allow_abbrev=False)
    add_calibrate(parser)
    parser.set_defaults(run=_calibrate)


def _add_reproduce(commands: Any) -> None:
    from vertumnusd.simulate.arguments import add_reproduce

    text = "run the whole evaluation and write docs/benchmarks.md"
    parser = commands.add_parser("reproduce", help=text, allow_abbrev=False)
    add_reproduce(parser)
    parser.set_defaults(run=_reproduce)


def _add_status(commands: Any) -> None:
    status = commands.add_parser("status", help="print the cluster", allow_abbrev=False)
    status.add_argument("--url", default="http://127.0.0.1:8000", help="a node's address")
    status.add_argument("--api-key-file", type=Path, help="file whose first key is sent")
    status.add_argument("--json", action="store_true", help="the whole state as JSON")
    status.set_defaults(run=_status)


def _add_tui(commands: Any) -> None:
    from vertumnus_tui.arguments import add_tui

    parser = commands.add_parser("tui", help="watch a node and its cluster", allow_abbrev=False)
    add_tui(parser)
    parser.set_defaults(run=_tui)


def _add_config(commands: Any) -> None:
    config = commands.add_parser("config", help="check or show a configuration")
    actions = config.add_subparsers(dest="action", required=True, parser_class=Parser)
    for action, text in (("check", "exit 0 if the file is valid"), ("show", "print every value")):
        parser = actions.add_parser(action, help=text, allow_abbrev=False)
        parser.add_argument("file", type=Path, nargs="?")
        parser.set_defaults(run=_check if action == "check" else _show)


def _serve(arguments: argparse.Namespace) -> int:
    from vertumnusd.node.daemon import serve
    from vertumnusd.node.logs import set_up_logs

    set_up_logs(arguments.log_format, arguments.log_level)
    node = {"host": arguments.host, "port": arguments.port}
    node["api_key_file"] = arguments.api_key_file
    overrides = {
        "node": {key: value for key, value in node.items() if value is not None},
        "model": {"path": arguments.model} if arguments.model else {},
    }
    return serve(lambda: load_config(arguments.config, overrides))


def _demo(arguments: argparse.Namespace) -> int:
    from vertumnusd.demo import demo

    return demo(arguments.json, arguments.record)


def _profile(arguments: argparse.Namespace) -> int:
    from vertumnusd.profile.command import profile

    return profile(arguments)


def _simulate(arguments: argparse.Namespace) -> int:
    from vertumnusd.simulate.command import simulate

    return simulate(arguments)


def _calibrate(arguments: argparse.Namespace) -> int:
    from vertumnusd.simulate.calibrate import calibrate

    return calibrate(arguments)


def _reproduce(arguments: argparse.Namespace) -> int:
    from vertumnusd.simulate.arguments import check_reproduce

    check_reproduce(arguments)
    if arguments.live:
        from vertumnusd.live.experiment import reproduce_live

        return reproduce_live(arguments)
    from vertumnusd.simulate.reproduce import reproduce

    return reproduce(arguments)


def _status(arguments: argparse.Namespace) -> int:
    from vertumnusd.status import status

    return status(arguments.url, arguments.api_key_file, arguments.json)


def _tui(arguments: argparse.Namespace) -> int:
    from vertumnus_tui.command import tui

    return tui(arguments, admin_socket_path("", arguments.port))


def _check(arguments: argparse.Namespace) -> int:
    config = load_config(arguments.file)
    if config.model.profile:
        load_profile(config.model, "")
    print(f"{arguments.file or 'defaults'}: ok")
    return 0


def _show(arguments: argparse.Namespace) -> int:
    print(_toml(load_config(arguments.file)), end="")
    return 0


def _toml(config: Config) -> str:
    """Every section and key."""
    sections = msgspec.to_builtins(config)
    return "\n".join(
        f"[{name}]\n" + "".join(f"{key} = {_toml_value(value)}\n" for key, value in keys.items())
        for name, keys in sections.items()
    )


def _toml_value(value: Any) -> str:
    """JSON spells numbers, lists and strings as TOML does, but not tables."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {json.dumps(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)


if __name__ == "__main__":
    sys.exit(main())
