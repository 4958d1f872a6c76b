"""``vertumnusd status``: the cluster as one page of text, or as JSON."""

from __future__ import annotations

import http.client
import json
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

TIMEOUT_S = 5.0


def status(url: str, api_key_file: Path | None, as_json: bool) -> int:
    """Ask the node at ``url`` and print what it says. Returns the exit status."""
    try:
        view = _fetch(url.rstrip("/") + "/v1/cluster", api_key_file)
    except (OSError, ValueError, http.client.HTTPException) as error:
        print(f"vertumnusd status: {url}: {_reason(error)}", file=sys.stderr)
        return 1
    print(json.dumps(view, indent=2) if as_json else "\n".join(render(view)))
    return 0


def _fetch(url: str, api_key_file: Path | None) -> dict[str, Any]:
    if not url.startswith(("http://", "https://")):
        raise ValueError("an address like http://127.0.0.1:8000 is expected")
    headers = {}
    if api_key_file is not None:
        key = next(iter(api_key_file.read_text().split()), "")
        headers["Authorization"] = f"Bearer {key}"
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        view = json.load(answer)
    if not isinstance(view, dict) or "workers" not in view:
        raise ValueError("the answer is not a cluster")
    return view


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        with error:
            return f"HTTP {error.code} {error.reason}"
    if isinstance(error, json.JSONDecodeError | http.client.HTTPException):
        return f"this is no vertumnusd: {str(error).strip()}"
    return str(getattr(error, "reason", error))


def render(view: dict[str, Any]) -> list[str]:
    """The lines of ``vertumnusd status``."""
    state = view["unready"] or "ready"
    waiting = view["waiting"]
    fence = f"term {view['term']}  epoch {view['epoch']}"
    lines = [
        f"{view['model']}  {view['composition']}  {fence}  {state}",
        "",
        f"{'worker':12}{'state':12}{'queue s':>9}{'waiting':>9}  running",
    ]
    for worker in view["workers"]:
        running = ", ".join(_progress(view, name) for name in worker["running"]) or "-"
        blocked = f"  ({worker['blocked']})" if worker["blocked"] else ""
        lines.append(
            f"{worker['name']:12}{worker['state']:12}{worker['queue_s']:>9.2f}"
            f"{worker['waiting']:>9}  {running}{blocked}"
        )
    lines += ["", f"{'home':12}{'cached':>9}{'pinned':>9}{'free':>9}  blocks"]
    for home in view["homes"]:
        ranks = "-".join(str(rank) for rank in sorted({home["ranks"][0], home["ranks"][-1]}))
        lines.append(
            f"{ranks:12}{home['cached_blocks']:>9}{home['pinned_blocks']:>9}{home['free_blocks']:>9}"
        )
    lines += ["", f"{'decode':12}{'state':12}{'free':>9}  of blocks"]
    for pool in view["decode"]:
        lines.append(
            f"rank {pool['rank']:<7}{'up' if pool['up'] else 'down':12}"
            f"{pool['free_blocks']:>9}  of {pool['kv_blocks']}"
        )
    why = ", ".join(f"{count} {reason}" for reason, count in waiting["reasons"].items())
    totals = ", ".join(f"{name} {count}" for name, count in view["totals"].items())
    lines += [
        "",
        f"waiting: {waiting['requests']}{f' ({why})' if why else ''}",
        f"totals: {totals}",
    ]
    return lines


def _progress(view: dict[str, Any], name: str) -> str:
    """``req_ab12 6512 tokens 12/30 layers``, as far as this node knows."""
    for request in view["requests"]:
        if request["request"] == name:
            tokens = f"{name} {request['input_tokens']} tokens"
            if request["layers"]:
                return f"{tokens} {request['layers_done']}/{request['layers']} layers"
            return tokens
    return str(name)
