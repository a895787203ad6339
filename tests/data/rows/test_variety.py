from eyas.data.rows.variety import lengths, missing_kinds, sample, turns_of
from eyas.data.text.tokenise import TokenRow


def row(*pieces: int) -> TokenRow:
    """Stretches of tokens, the first of a prompt, the next of an answer and so on."""
    flags = [bool(number % 2) for number, length in enumerate(pieces) for _ in range(length)]
    return TokenRow(tuple(range(len(flags))), tuple(flags))


def test_kinds_of_which_there_is_hardly_one_in_a_hundred_are_named():
    rows = [row(9, 5)] * 295 + [row(600, 5)] * 4 + [row(9, 5, 3, 2)]
    texts = ["Hello there."] * 300 + ["```python\nx```"]
    assert missing_kinds(rows, texts) == ["conversations of several turns", "code", "calculations"]
    assert missing_kinds(rows * 2 + [row(9, 5, 3, 2)] * 9, ["7 + 5 = 12 ```"]) == []


def test_turns_are_stretches_of_what_is_learned():
    assert [turns_of(row(3, 2)), turns_of(row(3, 2, 1, 1)), turns_of(row(0, 2))] == [1, 2, 1]


def test_lengths_are_told_with_their_middle_and_few_rows_tell_nothing():
    assert lengths([row(4, 2), row(9, 7), row(30, 3)]) == (
        "prompts of 4 … 30 tokens (median 9), answers of 2 … 7 (median 3)"
    )
    assert sample(99) is None
    assert len(sample(10**6) or ()) <= 2000
