"""The app, headless: it shows what the panel says, and obeys keys and clicks in every state."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from screens import MERGES_S, SIZES, SPLITS_S, player_at
from textual.pilot import Pilot
from vertumnus_tui.app import ConsoleApp
from vertumnus_tui.board import Board
from vertumnus_tui.dialogs import Question, Sheet
from vertumnus_tui.link import Address
from vertumnus_tui.panel import NAMES, Panel
from vertumnus_tui.source import LiveSource, ReplaySource
from websockets.asyncio.server import unix_serve

from vertumnusd.messages import FeedDelta, FeedSnapshot

Script = Callable[[Pilot[None]], Awaitable[None]]


def play(script: Script, seconds: float = SPLITS_S, size: tuple[int, int] = (80, 24)) -> ConsoleApp:
    source = ReplaySource(player_at(seconds))
    return drive(ConsoleApp(source, Panel(source.model)), script, size)


def drive(app: ConsoleApp, script: Script, size: tuple[int, int] = (80, 24)) -> ConsoleApp:
    async def main() -> None:
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await script(pilot)

    asyncio.run(main())
    return app


def app_of(pilot: Pilot[None]) -> ConsoleApp:
    assert isinstance(pilot.app, ConsoleApp)
    return pilot.app


def drawn(app: ConsoleApp) -> str:
    board = app.screen_stack[0].query_one(Board)
    return "\n".join(board.render_line(y).text.rstrip() for y in range(board.size.height)) + "\n"


@pytest.mark.parametrize("size", SIZES)
def test_the_board_draws_what_the_panel_says(size):
    async def script(pilot: Pilot[None]) -> None:
        app = app_of(pilot)
        for n, name in enumerate(NAMES, 1):
            await pilot.press(str(n))
            assert app.panel.name == name
            assert drawn(app) == app.panel.text(*size)

    play(script, MERGES_S, size)


def test_a_storm_of_sizes_ends_in_the_last_one():
    async def script(pilot: Pilot[None]) -> None:
        for width, height in [(80, 24), (20, 5), (200, 60), (1, 1), (79, 24), (120, 40)] * 5:
            await pilot.resize_terminal(width, height)
        await pilot.pause()
        assert drawn(app_of(pilot)) == app_of(pilot).panel.text(120, 40)

    play(script)


def test_tab_and_arrows_turn_pages_and_move():
    async def script(pilot: Pilot[None]) -> None:
        panel = app_of(pilot).panel
        await pilot.press("tab", "tab")
        assert panel.name == NAMES[2]
        await pilot.press("shift+tab", "left")
        assert panel.name == NAMES[0]
        before = panel.selected
        await pilot.press("down")
        assert panel.selected != before
        await pilot.press("home")
        assert panel.selected == before

    play(script)


def test_clicks_do_what_is_written_there():
    async def script(pilot: Pilot[None]) -> None:
        panel = app_of(pilot).panel
        tabs = panel.text(80, 24).splitlines()[1]
        await pilot.click("#board", offset=(tabs.index("Requests"), 1))
        assert panel.name == "requests"
        rows = panel.text(80, 24).splitlines()
        row = next(n for n, text in enumerate(rows) if " CP2" in text)
        await pilot.click("#board", offset=(4, row))
        assert panel.selected.startswith("request ")
        assert panel.selected.split()[1] in rows[row]

    play(script)


def test_the_filter_narrows_while_it_is_typed_and_ends_with_escape():
    async def script(pilot: Pilot[None]) -> None:
        panel = app_of(pilot).panel
        await pilot.press("5", "slash", *"split")
        assert panel.filter == "split"
        await pilot.press("enter", "2")
        assert panel.name == "reconfigurations"
        await pilot.press("5")
        assert panel.filter == "split"
        await pilot.press("escape")
        assert panel.filter == ""

    play(script)


@pytest.mark.parametrize("key", ["escape", "q", "enter"])
def test_help_and_details_open_and_close(key):
    async def script(pilot: Pilot[None]) -> None:
        for opens in ("question_mark", "enter"):
            await pilot.press(opens)
            assert isinstance(pilot.app.screen, Sheet)
            await pilot.press(key)
            assert not isinstance(pilot.app.screen, Sheet)

    play(script)


def test_the_name_that_is_selected_is_copied():
    async def script(pilot: Pilot[None]) -> None:
        await pilot.press("y")
        assert pilot.app.clipboard == app_of(pilot).panel.selected.removeprefix("worker ")

    play(script)


def test_replay_seeks_pauses_and_changes_speed():
    async def script(pilot: Pilot[None]) -> None:
        source = app_of(pilot)._source
        assert isinstance(source, ReplaySource)
        player = source.player
        await pilot.press("greater_than_sign")
        assert player.at_s == SPLITS_S + 10
        await pilot.press("left_square_bracket")
        assert player.at_s == 0
        await pilot.press("plus", "plus", "minus", "space")
        assert (player.speed, player.paused) == (2.0, False)

    play(script)


def test_themes_follow_each_other_and_none_may_use_colour(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")

    async def script(pilot: Pilot[None]) -> None:
        board = app_of(pilot).screen_stack[0].query_one(Board)
        segments = [s for y in range(24) for s in board.render_line(y)]
        assert not any(s.style and s.style.color for s in segments)
        await pilot.press("t")
        assert app_of(pilot).theme == "vertumnus-dark"

    play(script)


def test_commands_are_found_by_name():
    async def script(pilot: Pilot[None]) -> None:
        await pilot.press("ctrl+p", *"Prefixes")
        await pilot.pause(0.5)
        await pilot.press("enter")
        await pilot.pause()
        assert app_of(pilot).panel.name == "prefixes"

    play(script)


def live_app(tmp_path, admin: bool) -> ConsoleApp:
    """Follows a node that is not there; with a picture all the same."""
    source = LiveSource(Address(socket=tmp_path / "none.sock"))
    raw = player_at(SPLITS_S).model.raw()
    source.model.apply(FeedSnapshot(1, 22.0, 0.0, raw))
    return ConsoleApp(source, Panel(source.model, admin=admin))


def test_without_admin_nothing_is_asked_for(tmp_path):
    async def script(pilot: Pilot[None]) -> None:
        await pilot.press("S")
        await pilot.pause(0.1)
        assert not isinstance(pilot.app.screen, Question)
        assert [n.message for n in pilot.app._notifications] == [
            "read-only: start the console with --admin to change the cluster"
        ]

    drive(live_app(tmp_path, admin=False), script)


def test_a_node_that_is_away_cannot_be_asked(tmp_path):
    async def script(pilot: Pilot[None]) -> None:
        await pilot.press("S")
        await pilot.pause(0.2)
        assert "No such file" in next(iter(pilot.app._notifications)).message

    drive(live_app(tmp_path, admin=True), script)


def test_a_burst_of_events_leaves_it_responsive(tmp_path):
    """10,000 events at once, as the node would send them for a very busy second."""
    path = tmp_path / "admin.sock"
    cluster = player_at(SPLITS_S).model.raw()
    event = {"t": 22.0, "type": "Exposed", "worker": "CP4[0-3]", "epoch": 1}

    async def node(websocket) -> None:
        await websocket.send(msgspec.json.encode(FeedSnapshot(0, 22.0, 0.0, cluster)).decode())
        for seq in range(1, 11):
            frame = FeedDelta(seq, 22.0 + seq, {}, {}, [event] * 1000)
            await websocket.send(msgspec.json.encode(frame).decode())
        await websocket.wait_closed()

    async def script(pilot: Pilot[None]) -> None:
        app = app_of(pilot)
        async with unix_serve(node, str(path)):
            await pilot.press("5")
            for _ in range(400):
                if app._source.model.t == 32.0:
                    break
                await pilot.pause(0.05)
            app.paint()
            await pilot.press("down")
            assert "5000 of 5000" in drawn(app)
            assert app.panel.selected == "event 9998"

    source = LiveSource(Address(socket=path))
    drive(ConsoleApp(source, Panel(source.model)), script)


@pytest.mark.parametrize(
    "keys",
    [["q"], ["question_mark", "ctrl+c"], ["5", "slash", "ctrl+c"], ["ctrl+p", "ctrl+c"]],
    ids=" ".join,
)
def test_it_ends_in_every_state(keys, tmp_path):
    async def script(pilot: Pilot[None]) -> None:
        await pilot.press(*keys)
        assert pilot.app._exit

    play(script)
    drive(live_app(tmp_path, admin=False), script)


def test_in_ascii_nothing_else_is_drawn_whatever_is_open():
    source = ReplaySource(player_at(SPLITS_S))
    app = ConsoleApp(source, Panel(source.model, ascii=True))

    async def script(pilot: Pilot[None]) -> None:
        for key in ("question_mark", "enter", "ctrl+p"):
            await pilot.press(key)
            await pilot.pause(0.2)
            shown = "".join(
                segment.text
                for strip in pilot.app.screen._compositor.render_strips()
                for segment in strip
            )
            assert shown.isascii(), [c for c in shown if not c.isascii()]
            await pilot.press("escape")

    drive(app, script)
