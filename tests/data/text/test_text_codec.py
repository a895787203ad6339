import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from byte_tokenizer import byte_tokenizer
from eyas.data.text.tokenise import decode_many, encode_many
from tiny_tokenizer import tiny_tokenizer

START = "<|im_start|>"


def marks_beginnings() -> PreTrainedTokenizerFast:
    """Puts ▁ before the first word of a text, but not behind a special token within it."""
    letters = {letter: i for i, letter in enumerate("▁abcdef")}
    inner = Tokenizer(BPE(vocab=letters, merges=[], unk_token=None))
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    inner.decoder = decoders.Metaspace(prepend_scheme="first")
    inner.add_special_tokens([AddedToken(START, special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token=START)


def swallows_blanks() -> PreTrainedTokenizerFast:
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"bos_token": AddedToken("<s>", rstrip=True, special=True)})
    return tokenizer


def one_by_one(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> list[list[int]]:
    return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=8), st.lists(st.text(max_size=12), max_size=5))
def test_many_texts_with_one_beginning_have_the_ids_that_each_has_alone(beginning: str, ends: list[str]):
    texts = [f"{START}{beginning}<|im_end|>\n{START}user\n{end}<|im_end|>" for end in ends]
    assert encode_many(byte_tokenizer(), texts) == one_by_one(byte_tokenizer(), texts)
    assert decode_many(byte_tokenizer(), encode_many(byte_tokenizer(), texts)) == texts


@pytest.mark.parametrize(
    ("tokenizer", "texts"),
    [
        (marks_beginnings(), [f"{START}ab", f"{START}ac"]),
        (marks_beginnings(), [f"ab{START}ab", f"ab{START}ab d"]),
        (swallows_blanks(), ["<s> a", "<s>  b", "<s>\n c"]),
        (swallows_blanks(), ["<s>a b", "<s>a c"]),
        (tiny_tokenizer(), ["<s> user w1", "<s> user w2 w3"]),
        (byte_tokenizer(), [START, f"{START}x"]),
    ],
)
def test_a_beginning_is_shared_only_where_that_changes_no_id(tokenizer: PreTrainedTokenizerFast, texts: list[str]):
    assert encode_many(tokenizer, texts) == one_by_one(tokenizer, texts)


def test_truncation_and_padding_of_a_tokenizer_file_do_not_cut_data():
    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.enable_truncation(3)
    tokenizer.backend_tokenizer.enable_padding(length=3)
    assert [len(ids) for ids in encode_many(tokenizer, ["abcdef", "a"])] == [6, 1]
