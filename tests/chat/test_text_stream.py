"""Text as it comes: never half a character, the same text in the end, and nothing of a stop string."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from byte_tokenizer import byte_tokenizer
from eyas.chat.text_stream import AnswerText, Piece, StopGate, TokenText
from tiny_tokenizer import tiny_tokenizer

BYTES = byte_tokenizer()


def decode_bytes(ids: Sequence[int]) -> str:
    return BYTES.decode(list(ids), skip_special_tokens=True)


def streamed(decode, ids: Sequence[int]) -> list[str]:
    text = TokenText(decode)
    return [*(text.push(token) for token in ids), text.end()]


@settings(max_examples=100, deadline=None)
@given(st.text(min_size=1, max_size=12))
def test_every_piece_is_whole_characters_and_together_they_are_the_text(text: str):
    ids = BYTES(text)["input_ids"]

    pieces = streamed(decode_bytes, ids)

    assert "".join(pieces) == decode_bytes(ids)
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, len(BYTES) - 1), max_size=20))
def test_bytes_that_are_no_text_come_out_as_the_decoder_has_them(ids: list[int]):
    assert "".join(streamed(decode_bytes, ids)) == decode_bytes(ids)


def test_a_character_of_four_tokens_comes_with_its_last_one():
    ids = BYTES("a😀b")["input_ids"]

    assert streamed(decode_bytes, ids) == ["a", "", "", "", "😀", "b", ""]


def test_a_character_that_is_never_finished_comes_at_the_end():
    assert streamed(decode_bytes, BYTES("😀")["input_ids"][:3]) == ["", "", "", "\ufffd"]


def test_blanks_that_a_decoder_puts_or_drops_are_those_of_the_whole_text():
    words = tiny_tokenizer()
    inner = Tokenizer(WordLevel({"▁a": 0, "b": 1, "▁c": 2}, unk_token="b"))
    inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    pieces = PreTrainedTokenizerFast(tokenizer_object=inner)

    assert streamed(words.decode, [9, 8, 7]) == ["w2", " w1", " w0", ""]
    assert streamed(pieces.decode, [0, 1, 2, 0]) == ["a", "b", " c", " a", ""]


def gate(stops: Sequence[str], *texts: str) -> tuple[str, bool]:
    found, through = StopGate(stops), ""
    for text in texts:
        if not found.has_stopped:
            through += "".join(p.text for p in found.push(Piece(text, is_draft=False)))
            assert not any(stop in through for stop in stops)
    return through + "".join(p.text for p in found.end()), found.has_stopped


@pytest.mark.parametrize(
    ("texts", "shown", "has_stopped"),
    [
        (["one ", "two"], "one two", False),
        (["one EN", "D two"], "one ", True),
        (["one E", "N two"], "one EN two", False),
        (["EEN", "D"], "E", True),
        (["one EN"], "one EN", False),
        (["END"], "", True),
    ],
)
def test_a_stop_text_ends_before_itself_also_where_tokens_part_it(texts, shown, has_stopped):
    assert gate(["END", "ENTER"], *texts) == (shown, has_stopped)


@given(st.lists(st.text("ab", max_size=3), max_size=8), st.lists(st.text("ab", min_size=1, max_size=3), max_size=2))
def test_what_comes_through_is_the_text_before_the_first_stop_whatever_the_pieces(texts: list[str], stops: list[str]):
    whole = "".join(texts)
    ends = [end for end in range(len(whole) + 1) if any(whole[:end].endswith(stop) for stop in stops)]
    starts = [whole[: ends[0]].find(stop) for stop in stops if whole[: ends[0]].endswith(stop)] if ends else []

    if len(set(map(len, texts))) <= 1 and (
        not texts or len(texts[0]) == 1
    ):  # one letter a token: no stop hides another
        assert gate(stops, *texts) == (whole[: min(starts)] if starts else whole, bool(ends))
    else:
        shown, has_stopped = gate(stops, *texts)
        assert whole.startswith(shown)
        assert has_stopped == bool(ends)


def test_pieces_keep_their_origin_through_what_is_held_back():
    shown: list[Piece] = []
    answer = AnswerText(lambda ids: "".join("xENy"[i] for i in ids), ["END"], shown.append)
    for token, is_draft in ((0, False), (1, True), (2, False), (3, True)):
        answer.push(token, is_draft=is_draft)
    answer.end()

    assert shown == [Piece("x", False), Piece("E", True), Piece("N", False), Piece("y", True)]
    assert (answer.text, answer.num_ids, answer.has_stopped) == ("xENy", 4, False)


def test_tokens_after_a_stop_text_are_not_counted():
    answer = AnswerText(lambda ids: "".join("abc"[i] for i in ids), ["b"], lambda piece: None)
    for token in (0, 1, 2):
        answer.push(token, is_draft=False)

    assert (answer.text, answer.num_ids) == ("a", 2)
