"""Whatever a name contains, it takes its cells and draws nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from vertumnus_tui.glyphs import ASCII, UNICODE, to_ascii
from vertumnus_tui.text import Span, cut, fit, length, plain, safe, spread

HOSTILE = {
    "escape": "a\x1b[2Jb",
    "bell": "a\x07b",
    "C1 control": "a\x9b31mb",
    "carriage return": "good\rbad!",
    "right to left override": "a\u202egnp.exe",
    "isolate": "a\u2066b\u2069",
    "arabic": "a\u0645b",
    "wide": "a漢b",
    "emoji": "a\U0001f600b",
    "combining": "e\u0301\u0301\u0301",
    "zero width": "a\u200bb\u200d",
    "soft hyphen": "a\u00adb",
    "line separator": "a\u2028b",
    "private": "a\ue000b",
    "lone surrogate": "a\ud800b",
    "tag": "a\U000e0041b",
    "jamo of no width": "a\ud7b0b",
}


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_characters_are_replaced(name):
    shown = safe(name)
    assert shown != name
    assert shown.isprintable()
    assert cell_len(shown) == len(shown) == len(name)


@given(st.text())
def test_every_character_takes_one_cell(text):
    shown = safe(text)
    assert cell_len(shown) == len(shown)
    assert all(character.isprintable() for character in shown)


@pytest.mark.parametrize("name", ["CP4[0-3]", "Qwen/Qwen3-30B-A3B", "Größe é ß Ω λ", "[bold]x[/]"])
def test_ordinary_names_stay(name):
    assert safe(name) == name


def test_lines_have_exactly_their_width():
    spans = (Span("abc"), Span("defgh"))
    assert plain(cut(spans, 5)) == "abcd…"
    assert plain(cut(spans, 10)) == "abcdefgh  "
    assert cut(spans, 0) == (Span(""),)
    assert fit("abc", 6, ">") == "   abc"
    assert length(spread(spans, (Span("right"),), 9)) == 9


def test_our_own_signs_take_one_cell():
    for glyphs in (UNICODE, ASCII):
        for name in glyphs.__slots__:
            value = getattr(glyphs, name)
            assert value is True or value is False or cell_len(value) == len(value), name


def test_ascii_is_ascii():
    assert to_ascii("q → λ … ■") == "q > l ~ ?"
