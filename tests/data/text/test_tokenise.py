import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers

from byte_tokenizer import byte_tokenizer
from eyas.data.text.chat_template import Segment
from eyas.data.text.tokenise import TokenRow, TokensNotText, tokenise
from tiny_tokenizer import tiny_tokenizer


def test_the_mask_changes_exactly_at_the_seams():
    row = tokenise([Segment("ab", False), Segment("c<|im_end|>", True), Segment("d", False)], byte_tokenizer(), "r")

    assert row.is_supervised == (False, False, True, True, False)
    assert byte_tokenizer().decode(row.token_ids) == "abc<|im_end|>d"


def test_a_tokenizer_that_loses_text_at_the_seams_is_refused():
    with pytest.raises(TokensNotText) as caught:
        tokenise([Segment("user w1", False), Segment("  w2", True)], tiny_tokenizer(), "data file 1, record 9")
    assert caught.value.where == "data file 1, record 9"


def test_a_tokenizer_that_composes_accents_as_qwens_does_is_no_reason_to_refuse_them():
    composes, apart = byte_tokenizer(), unicodedata.normalize("NFD", "é")
    composes.backend_tokenizer.normalizer = normalizers.NFC()
    row = tokenise([Segment(f"caf{apart}", False), Segment(f"{apart}t{apart}<|im_end|>", True)], composes, "r")
    assert composes.decode(row.token_ids) == "caféété<|im_end|>"
    assert composes.decode([i for i, s in zip(row.token_ids, row.is_supervised, strict=True) if s]) == "été<|im_end|>"


def test_half_of_a_surrogate_pair_is_refused():
    with pytest.raises(TokensNotText, match="half of a surrogate pair") as caught:
        tokenise([Segment("a\ud800", True)], byte_tokenizer(), "data file 1, record 9")
    assert caught.value.where == "data file 1, record 9"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=12), st.booleans()), min_size=1, max_size=6))
def test_supervised_ids_decode_to_the_supervised_text_for_any_text(parts):
    segments = [Segment(text.encode("utf-8", "ignore").decode(), flag) for text, flag in parts]
    tokenizer = byte_tokenizer()
    row = tokenise(segments, tokenizer, "r")

    learned = [i for i, flag in zip(row.token_ids, row.is_supervised, strict=True) if flag]
    assert tokenizer.decode(learned) == "".join(s.text for s in segments if s.is_supervised)


def test_cutting_keeps_ids_and_mask_together():
    row = TokenRow((5, 6, 7), (False, True, True)).cut(2)
    assert row == TokenRow((5, 6), (False, True))
    assert row.num_supervised == 1
