"""Temperature, top-k, top-p, min-p: probabilities by definition, draws by their number."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.decode.sampling import Sampling, SamplingBatch, SamplingInvalid, draw, token_probs

CPU = torch.device("cpu")
LOGITS = torch.tensor([0.0, 3.0, 1.0, 2.0, -1.0])


def probs(**settings: float) -> torch.Tensor:
    return token_probs(LOGITS[None], SamplingBatch.of([Sampling(**settings)], CPU))[0]  # type: ignore[arg-type]


def test_temperature_divides_the_logits():
    torch.testing.assert_close(probs(temperature=0.5), (LOGITS * 2).softmax(-1))


def test_greedy_is_one_hot_and_ties_go_to_the_lowest_id():
    tied = torch.tensor([[1.0, 5.0, 5.0]])

    assert token_probs(tied, SamplingBatch.of([Sampling()], CPU)).tolist() == [[0.0, 1.0, 0.0]]


def test_top_k_keeps_the_k_likeliest():
    full = LOGITS.softmax(-1)
    kept = torch.tensor([0, full[1], 0, full[3], 0])

    torch.testing.assert_close(probs(temperature=1.0, top_k=2), kept / kept.sum())


def test_top_p_keeps_the_token_that_crosses_the_sum():
    full = LOGITS.softmax(-1)
    assert full[1] < 0.7 < full[1] + full[3]

    kept = torch.tensor([0, full[1], 0, full[3], 0])
    torch.testing.assert_close(probs(temperature=1.0, top_p=0.7), kept / kept.sum())


@pytest.mark.parametrize("top_p", [1e-3, 1e-40, 1e-60, 5e-324])
def test_a_top_p_that_fp32_rounds_to_nothing_keeps_the_likeliest(top_p: float):
    assert probs(temperature=1.0, top_p=top_p).tolist() == [0.0, 1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("top_k", [-1, 2**31, 2**63, 10**30])
def test_a_top_k_that_kernels_cannot_count_is_refused(top_k: int):
    with pytest.raises(SamplingInvalid, match=f"top_k is {top_k}, must be at least 0, below 2\\^31"):
        Sampling(temperature=1.0, top_k=top_k)
    assert probs(temperature=1.0, top_k=2**31 - 1).tolist() == probs(temperature=1.0).tolist()


def test_min_p_is_relative_to_the_likeliest():
    full = LOGITS.softmax(-1)
    kept = full * (full >= 0.3 * full.max())

    torch.testing.assert_close(probs(temperature=1.0, min_p=0.3), kept / kept.sum())


def test_each_row_of_a_batch_keeps_its_own_settings_to_the_last_bit():
    chosen = [
        Sampling(temperature=1.0, top_k=1),
        Sampling(),
        Sampling(temperature=2.0),
        Sampling(temperature=1.0, top_p=0.5),
    ]
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(0))
    together = token_probs(logits, SamplingBatch.of(chosen, CPU))

    for row, of_row, one in zip(together, logits, chosen, strict=True):
        assert torch.equal(row, token_probs(of_row[None], SamplingBatch.of([one], CPU))[0])


@settings(max_examples=50, deadline=None)
@given(
    logits=st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=12),
    temperature=st.floats(0.1, 5),
    top_k=st.integers(0, 15),
    top_p=st.floats(0.01, 1),
    min_p=st.floats(0, 0.99),
)
def test_filters_leave_a_distribution_that_holds_the_likeliest_token(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
):
    row = torch.tensor(logits)
    one = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)

    found = token_probs(row[None], SamplingBatch.of([one], CPU))[0]

    assert float(found.sum()) == pytest.approx(1, abs=1e-5)
    likeliest = (row / temperature).softmax(-1)
    assert float(found[likeliest == likeliest.max()].max()) > 0  # which of several equals is left is not said
    if top_k:
        assert int((found > 0).sum()) <= top_k


def test_a_draw_inverts_the_distribution():
    row = torch.tensor([[0.25, 0.0, 0.5, 0.25]]).expand(5, -1)

    assert draw(row, torch.tensor([0.0, 0.24, 0.26, 0.74, 0.999999])).tolist() == [0, 0, 2, 2, 3]


def test_all_that_is_out_of_range_is_said_at_once():
    with pytest.raises(SamplingInvalid) as caught:
        Sampling(temperature=-1, top_k=-1, top_p=0, min_p=1.1, seed=2**63)
    with pytest.raises(SamplingInvalid, match=r"top_k is 2\.5.*seed is 1\.5"):
        Sampling(top_k=2.5, seed=1.5)  # type: ignore[arg-type]

    for name in ("temperature", "top_k", "top_p", "min_p", "seed"):
        assert name in caught.value.why


def test_the_texts_of_one_seed_have_seeds_in_a_row_and_the_first_follows_the_last():
    last = 2**63 - 1
    assert [Sampling(seed=7).of_text(n).seed for n in range(3)] == [7, 8, 9]
    assert [Sampling(seed=last).of_text(n).seed for n in range(3)] == [last, -last, -last + 1]


@pytest.mark.parametrize("temperature", [1e-300, 1e-46, 1e-40, 1e-38, float("inf"), float("nan")])
def test_a_temperature_that_fp32_cannot_divide_by_is_refused(temperature: float):
    with pytest.raises(SamplingInvalid, match="temperature"):
        Sampling(temperature=temperature)


def test_the_least_temperature_and_a_top_k_of_one_choose_what_greedy_chooses():
    rows = torch.randn(50, 40, generator=torch.Generator().manual_seed(3)) * 30
    for one in (Sampling(temperature=1e-6), Sampling(temperature=1.0, top_k=1), Sampling(temperature=1.0, min_p=1.0)):
        probs = token_probs(rows, SamplingBatch.of([one] * 50, CPU))

        assert torch.equal(draw(probs, torch.linspace(0, 0.999, 50)), rows.argmax(-1))
