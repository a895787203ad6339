import torch

from eyas.data.text.tokenise import TokenRow
from eyas.models.target import Target
from eyas.talk import Silent
from eyas.train.config import TrainConfig
from eyas.train.optimise.teaching import Teaching
from eyas.train.preflight.target_checks import check_answers
from tiny_target import tiny_target

TARGET = Target(tiny_target("llama", seed=3))
TEACHING = Teaching.live(TARGET, TrainConfig())


class Bars(Silent):
    """Keeps how long bars are."""

    def __init__(self) -> None:
        super().__init__()
        self.totals: list[float | None] = []

    def progress(self, label: str, total: float | None, unit: str):
        self.totals.append(total)
        return super().progress(label, total, unit)


def written(temperature: float, num_rows: int, length: int = 60) -> list[TokenRow]:
    """Rows that the target writes itself after a prompt of three tokens."""
    torch.manual_seed(0)
    ids = torch.randint(3, 64, (num_rows, 3))
    with torch.no_grad():
        for _ in range(length - 3):
            logits = TARGET.model(ids).logits[:, -1]
            if temperature:
                chosen = torch.multinomial((logits / temperature).softmax(-1), 1)
            else:
                chosen = logits.argmax(-1, keepdim=True)
            ids = torch.cat([ids, chosen], 1)
    flags = tuple(i >= 3 for i in range(length))
    return [TokenRow(tuple(row), flags) for row in ids.tolist()]


def test_sampled_text_of_the_target_has_the_targets_own_entropy():
    found = check_answers(TEACHING, written(1.0, 16), most_tokens=10_000)
    assert found.num_tokens == 16 * 57
    assert abs(found.nll - found.entropy) < 0.15
    assert found.foreign_share == 0.0
    assert not found.is_foreign


def test_greedy_text_is_all_first_choices_and_not_foreign():
    found = check_answers(TEACHING, written(0.0, 4))
    assert found.greedy_share == 1.0
    assert found.nll < found.entropy
    assert not found.is_foreign
    assert "they can be this target's own" in str(found)


def test_few_tokens_tell_nothing_unless_they_are_clear():
    assert "too few tokens to tell" in str(check_answers(TEACHING, written(1.0, 4)))
    assert not check_answers(TEACHING, written(1.0, 8), most_tokens=10_000).is_too_few


def test_text_by_somebody_else_is_told():
    generator = torch.Generator().manual_seed(1)
    rows = [
        TokenRow(tuple(torch.randint(3, 64, (60,), generator=generator).tolist()), (False,) * 3 + (True,) * 57)
        for _ in range(8)
    ]
    found = check_answers(TEACHING, rows)
    assert found.is_foreign
    assert "they are not this target's own" in str(found)


def test_it_reads_no_more_than_it_was_allowed_but_at_least_one_row():
    rows = written(0.0, 4)
    assert check_answers(TEACHING, rows, most_tokens=130).num_tokens == 2 * 57
    talk = Bars()
    assert check_answers(TEACHING, rows, talk, most_tokens=1).num_tokens == 57
    assert talk.totals == [60], "one row, its prompt included, is what the bar goes through"


def test_text_by_somebody_else_is_told_wherever_in_the_rows_it_stands():
    generator = torch.Generator().manual_seed(1)
    foreign = [
        TokenRow(tuple(torch.randint(3, 64, (60,), generator=generator).tolist()), (False,) * 3 + (True,) * 57)
        for _ in range(60)
    ]
    found = check_answers(TEACHING, [*written(0.0, 60), *foreign], most_tokens=1200)
    assert found.num_tokens == 20 * 57
    assert 0.3 < found.greedy_share < 0.7, "as many rows of either kind"
    assert not found.nll > found.entropy + 0.5, "in the mean the greedy rows hide the others"
    assert found.foreign_share == 0.5
    assert found.is_foreign
    assert "50% of them are not this target's own" in str(found)
