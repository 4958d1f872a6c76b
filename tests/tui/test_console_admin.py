"""What is asked before something is changed, and how the node is told."""

import asyncio
import json

import pytest
from screens import SPLITS_S, panel_at
from textual.pilot import Pilot
from vertumnus_tui.admin import (
    Action,
    AdminError,
    action_on,
    carry_out,
    composition_after,
    consequences,
    plan,
)
from vertumnus_tui.app import ConsoleApp
from vertumnus_tui.dialogs import Question
from vertumnus_tui.link import Address
from vertumnus_tui.panel import Panel
from vertumnus_tui.source import LiveSource

from vertumnusd.messages import FeedSnapshot

CLUSTER = panel_at(SPLITS_S).model.cluster
PLANNED = {
    "operation": 0,
    "kind": "split",
    "before": ["CP4[0-3]"],
    "after": ["CP2[0-1]", "CP2[2-3]"],
    "predicted_drain_s": 1.5,
}


class Node:
    """Answers every request with the next of ``answers``, and remembers what was asked."""

    def __init__(self, *answers: tuple[int, object]) -> None:
        self.asked: list[tuple[str, dict]] = []
        self._answers = list(answers)

    async def __call__(self, reader, writer) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.lower().partition("content-length: ")[2].split()[0])
        self.asked.append((head.split()[1], json.loads(await reader.readexactly(length))))
        status, content = self._answers.pop(0)
        body = json.dumps(content).encode()
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))
        writer.close()


def with_node(tmp_path, node, use):
    async def main():
        path = tmp_path / "admin.sock"
        async with await asyncio.start_unix_server(node, str(path)):
            return await use(Address(socket=path))

    return asyncio.run(main())


def test_siblings_are_merged():
    action = action_on("merge", "worker CP2[10-11]", CLUSTER, 0.0)
    assert action.body == {"workers": ["CP2[8-9]", "CP2[10-11]"]}


@pytest.mark.parametrize(
    ("kind", "selected", "words"),
    [
        ("split", "", "select a worker"),
        ("split", "request 7", "select a worker"),
        ("drain", "worker CP9[0]", "select a worker"),
    ],
)
def test_what_is_not_possible_is_said(kind, selected, words):
    with pytest.raises(AdminError, match=words):
        action_on(kind, selected, CLUSTER, 0.0)


def test_a_hold_is_begun_and_ended():
    assert action_on("hold", "", CLUSTER, 0.0).body["for_s"] == 1800.0
    panel = panel_at(SPLITS_S)
    raw = panel.model.raw()
    raw["adaptation"]["held_until"] = panel.model.t + 60
    panel.model.apply(FeedSnapshot(1, panel.model.t, 0.0, raw))
    assert action_on("hold", "", panel.model.cluster, panel.model.t).body["for_s"] == 0


def test_the_question_shows_before_and_after_and_who_is_affected():
    action = action_on("split", "worker CP4[0-3]", CLUSTER, 0.0)
    facts = dict(consequences(action, {"planned": [PLANNED]}, CLUSTER))
    assert facts["composition"] == "2CP4/4CP2"
    assert facts["afterwards"] == "1CP4/6CP2"
    assert facts["drain"] == "about 1.50 s"
    assert facts["runs to its end"] == "30 45"
    assert facts["placed elsewhere"].startswith("0 ")
    assert composition_after(CLUSTER, [], []) == CLUSTER.composition


def test_a_plan_is_a_dry_run_and_the_deed_is_not(tmp_path):
    node = Node((200, {"planned": [PLANNED]}), (200, {"converted": []}))
    action = Action("split", {"workers": ["CP4[0-3]"]}, "?")

    async def use(address):
        return await plan(address, action), await carry_out(address, action)

    assert with_node(tmp_path, node, use) == ({"planned": [PLANNED]}, {"converted": []})
    assert node.asked == [
        ("/v1/admin/split", {"workers": ["CP4[0-3]"], "dry_run": True}),
        ("/v1/admin/split", {"workers": ["CP4[0-3]"]}),
    ]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((409, {"error": {"message": "CP4[0-3] does not serve"}}), "does not serve"),
        ((503, {}), "HTTP 503"),
        ((200, [1]), "no vertumnusd"),
        ((500, "?"), "no vertumnusd"),
    ],
)
def test_a_refusal_is_passed_on(tmp_path, answer, words):
    action = Action("split", {"workers": []}, "?")
    with pytest.raises(AdminError, match=words):
        with_node(tmp_path, Node(answer), lambda address: plan(address, action))


@pytest.mark.parametrize(("key", "done"), [("y", True), ("enter", False), ("escape", False)])
def test_only_yes_does_it(tmp_path, key, done):
    node = Node((200, {"planned": [PLANNED]}), (200, {"converted": []}))

    async def use(address):
        source = LiveSource(address)
        source.model.apply(FeedSnapshot(1, SPLITS_S, 0.0, panel_at(SPLITS_S).model.raw()))
        app = ConsoleApp(source, Panel(source.model, admin=True))
        async with app.run_test(size=(80, 24)) as pilot:
            await press_and_answer(pilot, key)

    with_node(tmp_path, node, use)
    paths = [(path, body.get("dry_run", False)) for path, body in node.asked]
    assert paths == [("/v1/admin/split", True), ("/v1/admin/split", False)][: 1 + done]


async def press_and_answer(pilot: Pilot[None], key: str) -> None:
    await pilot.pause()
    await pilot.press("S")
    for _ in range(100):
        await pilot.pause(0.05)
        if isinstance(pilot.app.screen, Question):
            break
    assert isinstance(pilot.app.screen, Question)
    await pilot.press(key)
    await pilot.pause(0.3)


def test_a_prefix_is_reclaimed_after_telling_what_goes():
    action = action_on("reclaim", "prefix c804ce19", CLUSTER, 0.0)
    assert action.body == {"prefix": "c804ce19"}
    plan = {"planned": [{"home": 0, "blocks": 3}, {"home": 2, "blocks": 0}]}
    facts = dict(consequences(action, plan, CLUSTER))
    assert facts["home 0"] == "3 blocks, 1.5k tokens"
    assert "it stays" in facts["home 2"]
    with pytest.raises(AdminError, match="select a prefix"):
        action_on("reclaim", "worker CP4[0-3]", CLUSTER, 0.0)
