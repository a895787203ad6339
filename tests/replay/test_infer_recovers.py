"""`infer` recovers every switch of drafts that were made with others than their files state, and refuses to guess.

The drafts are random, and the texts are their own: each round's drafts as the draft computes them from random states,
then a random token. Trained ones: tests/train/run/test_infer_trained.py (make soak).
"""

from dataclasses import replace

import pytest
import torch

from eyas.cli.commands.infer import render
from eyas.contract.spec.draft_spec import DraftSpec, Rope
from eyas.models.draft import Eagle3Draft
from eyas.records.eval_record import InferRecord
from eyas.records.eval_rows import EvalRow
from eyas.records.probe_pack import ProbeAbout
from eyas.replay.infer import as_read, changes_of, infer_switches, normed_twice
from eyas.replay.probe_pack import PackStates, ProbePack
from eyas.talk import Silent
from tiny_draft import TARGET_HIDDEN, VOCAB, tiny_draft, tiny_spec

K, BOUNDARIES, NUM_PROMPT, LENGTH = 3, range(6), 4, 120
THETAS = (1e4, 5e5)
# What a draft was made with; its files state `tiny_spec(head_dim=32)`: EAGLE-3's reading, theta 10 000.
MADE_WITH = {
    "as stated": {},
    "residual": {"residual": "post-norm"},
    "feedback": {"feedback": "post-norm"},
    "boundaries one up": {"aux_boundaries": (3, 4, 5)},
    "boundaries one down": {"aux_boundaries": (1, 2, 3)},
    "boundaries reversed": {"aux_boundaries": (4, 3, 2)},
    "theta": {"rope": Rope(theta=5e5)},
    "pairing": {"rope": Rope(interleaved=True)},
    "heads": {"head_dim": 64, "num_heads": 2, "num_kv_heads": 1},
    "residual and feedback": {"residual": "post-norm", "feedback": "post-norm"},
    "feedback and boundaries": {"feedback": "post-norm", "aux_boundaries": (1, 2, 3)},
    "theta and pairing": {"rope": Rope(theta=5e5, interleaved=True)},
    "residual, feedback, boundaries": {
        "residual": "post-norm",
        "feedback": "post-norm",
        "aux_boundaries": (3, 4, 5),
    },
    "all but the heads": {
        "residual": "post-norm",
        "feedback": "post-norm",
        "aux_boundaries": (1, 2, 3),
        "rope": Rope(theta=5e5, interleaved=True),
    },
}


def stated() -> DraftSpec:
    return tiny_spec(head_dim=32, aux_boundaries=(2, 3, 4))


@torch.no_grad()
def own_text(draft: Eagle3Draft, aux: torch.Tensor, seed: int) -> list[int]:
    """Prompt, then rounds that accept all K drafts."""
    generator = torch.Generator().manual_seed(seed)

    def random_token() -> int:
        return int(torch.randint(VOCAB, (1,), generator=generator))

    text, g = [random_token() for _ in range(NUM_PROMPT + 1)], draft.fuse(aux[None])
    while len(text) < LENGTH:
        cache, newest = draft.new_cache(), len(text) - 1
        state, logits = draft.step(torch.tensor([text[1:]]), g[:, :newest], torch.arange(newest)[None], cache)
        for k in range(K):
            text.append(int(draft.to_target_ids(logits[0, -1].argmax())))
            at = torch.tensor([[newest + k]])
            state, logits = draft.step(torch.tensor([[text[-1]]]), state[:, -1:], at, cache)
        text.append(random_token())
    return text[:LENGTH]


def pack_of(draft: Eagle3Draft, num_rows: int = 2) -> ProbePack:
    """Random states of a target that writes `draft`'s own texts."""
    generator = torch.Generator().manual_seed(3)
    states = {b: torch.randn(num_rows * LENGTH, TARGET_HIDDEN, generator=generator) for b in BOUNDARIES}
    rows = []
    for i in range(num_rows):
        part = slice(i * LENGTH, (i + 1) * LENGTH)
        aux = torch.cat([states[b][part] for b in draft.spec.aux_boundaries or ()], -1)
        text = own_text(draft, aux, seed=i)
        rows.append(
            EvalRow(id=str(i), set="s", prompt_ids=tuple(text[:NUM_PROMPT]), response_ids=tuple(text[NUM_PROMPT:]))
        )
    about = ProbeAbout(
        target={"hidden_size": TARGET_HIDDEN, "architectures": ["X"]}, num_layers=5, vocab_size=VOCAB, dtype="float32",
        boundaries=[2, 3, 4], row_ids=[r.id for r in rows], row_sets=["s"] * num_rows, fingerprint="",
    )  # fmt: skip
    starts = [i * LENGTH for i in range(num_rows + 1)]
    nothing = torch.zeros(0, TARGET_HIDDEN)
    return ProbePack(
        about=about, rows=rows, starts=starts, states=states, last=torch.zeros(num_rows * LENGTH, TARGET_HIDDEN),
        embedding_ids=torch.zeros(0, dtype=torch.int32), embedding_rows=nothing,
    )  # fmt: skip


def inferred(pack: ProbePack, draft: Eagle3Draft) -> InferRecord:
    variants = infer_switches(
        PackStates(pack, torch.device("cpu")), draft, pack.rows, K, Silent(), boundaries_known=BOUNDARIES, thetas=THETAS
    )
    return InferRecord(variants=variants, num_draft_tokens=K, num_rows=len(pack.rows), draft="d")


@pytest.mark.parametrize("made_with", list(MADE_WITH))
def test_every_switch_is_recovered(made_with):
    draft = tiny_draft(seed=5, head_dim=32, aux_boundaries=(2, 3, 4))
    made = as_read(draft, replace(stated(), **MADE_WITH[made_with]))
    pack = pack_of(made, num_rows=max(2, 2 * len(MADE_WITH[made_with])))  # many wrong switches need more text

    record = inferred(pack, draft)

    assert record.best.changes == changes_of(stated(), made.spec)
    assert record.best.accept_length > 3.9
    assert record.is_decided


@pytest.mark.parametrize("more", [{}, {"feedback": "post-norm"}], ids=["alone", "with post-norm feedback"])
def test_modelopt_s_double_norm_is_recovered(more):
    draft = tiny_draft(seed=5, head_dim=32, aux_boundaries=(2, 3, 4))
    made = normed_twice(as_read(draft, replace(stated(), **more)))

    record = inferred(pack_of(made), draft)

    assert record.best.changes == {**more, "hidden_norm": "after input_layernorm"}
    assert record.best.accept_length > 3.9
    assert "hidden_norm = after input_layernorm" in render(record)


def test_a_random_draft_on_another_s_texts_is_refused():
    pack = pack_of(as_read(tiny_draft(seed=5, head_dim=32, aux_boundaries=(2, 3, 4)), stated()), num_rows=4)

    record = inferred(pack, tiny_draft(seed=6, head_dim=32, aux_boundaries=(2, 3, 4)))

    assert not record.is_decided
    assert record.as_document()["is_decided"] is False
    assert "none can be told from chance" in render(record)
