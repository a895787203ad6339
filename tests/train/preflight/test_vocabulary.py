import numpy as np
import pytest

from eyas.train.preflight.train_plan import DraftVocabTooLarge, choose_vocabulary

COUNTS = np.array([0, 5, 2, 0, 9, 2, 0, 1])


def test_the_most_frequent_tokens_are_chosen_and_ties_go_to_the_lower_id():
    chosen = choose_vocabulary(COUNTS, 3)
    assert chosen.ids == (1, 2, 4)
    assert chosen.coverage == pytest.approx(16 / 19)
    assert chosen.num_seen == 3


def test_too_few_distinct_tokens_are_filled_up_with_the_lowest_ids():
    chosen = choose_vocabulary(COUNTS, 7)
    assert chosen.ids == (0, 1, 2, 3, 4, 5, 7)
    assert (chosen.coverage, chosen.num_seen) == (1.0, 5)


def test_zero_means_the_whole_vocabulary():
    assert choose_vocabulary(COUNTS, 0).ids == tuple(range(8))


def test_more_than_the_target_has_is_refused():
    with pytest.raises(DraftVocabTooLarge):
        choose_vocabulary(COUNTS, 9)
