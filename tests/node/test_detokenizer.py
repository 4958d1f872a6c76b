"""Streaming text: whole characters, no control tokens, nothing of a stop string."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from vertumnusd.node.detokenizer import ByteTable, Detokenizer
from vertumnusd.node.stop_strings import StopStrings

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def byte_tokenizer() -> Tokenizer:
    """One token per byte, a control token, and an added one that is plain text."""
    tokenizer = Tokenizer(BPE({letter: id for id, letter in enumerate(ALPHABET)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    tokenizer.add_tokens([AddedToken("<think> ü", normalized=False)])
    return tokenizer


TOKENIZER = byte_tokenizer()
TABLE = ByteTable(TOKENIZER)
END = TOKENIZER.token_to_id("<end>")


def stream(ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(TABLE)
    return [detokenizer.push(id) for id in ids] + [detokenizer.flush()]


def test_a_character_appears_when_its_last_byte_does() -> None:
    ids = TOKENIZER.encode("é🙂").ids
    assert stream(ids) == ["", "é", "", "", "", "🙂", ""]


def test_a_character_cut_short_at_the_end_is_replaced() -> None:
    assert stream(TOKENIZER.encode("a🙂").ids[:-1]) == ["a", "", "", "", "\ufffd"]


def test_control_tokens_and_unknown_ids_are_not_shown() -> None:
    assert "".join(stream([*TOKENIZER.encode("a").ids, END, 10**6])) == "a"


def test_added_text_tokens_are_shown() -> None:
    assert "".join(stream(TOKENIZER.encode("x<think> ü").ids)) == "x<think> ü"


@given(st.lists(st.integers(0, TOKENIZER.get_vocab_size() - 1), max_size=40))
def test_streaming_equals_decoding_at_once(ids: list[int]) -> None:
    assert "".join(stream(ids)) == TOKENIZER.decode(ids, skip_special_tokens=True)


def cut(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    stop_strings = StopStrings(stops)
    shown = ""
    for piece in pieces:
        shown += stop_strings.push(piece)
        if stop_strings.hit:
            return shown, True
    return shown + stop_strings.flush(), False


def test_a_stop_string_spans_pieces_and_nothing_of_it_is_shown() -> None:
    assert cut(["STOP"], ["go S", "T", "OP now"]) == ("go ", True)


def test_the_first_of_several_stop_strings_counts() -> None:
    assert cut(["world", "lo"], ["hello world"]) == ("hel", True)


def test_a_beginning_that_came_to_nothing_is_shown() -> None:
    assert cut(["STOP"], ["ST", "ONE", " ST"]) == ("STONE ST", False)


def test_text_is_held_back_no_longer_than_needed() -> None:
    stop_strings = StopStrings(["aab"])
    assert [stop_strings.push(letter) for letter in "aaac"] == ["", "", "a", "aac"]


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4),
    st.lists(st.text("ab", max_size=3), max_size=12),
)
def test_pieces_are_cut_as_the_whole_text_is(stops: list[str], pieces: list[str]) -> None:
    text = "".join(pieces)
    ends = [text.find(stop) for stop in stops if stop in text]
    shown, hit = cut(stops, pieces)
    assert hit == bool(ends)
    if not hit:
        assert shown == text
    else:
        # Pieces arrive in time: the stop string that is complete first ends the answer.
        first_complete = min(text.find(stop) + len(stop) for stop in stops if stop in text)
        assert text.startswith(shown)
        assert len(shown) < first_complete
        assert not any(stop in shown for stop in stops)
