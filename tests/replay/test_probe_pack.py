from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from eyas.contract.spec.target_spec import read_target
from eyas.models.load_draft import DraftTargetMismatch
from eyas.models.save_draft import save_draft
from eyas.records.eval_rows import EvalRow, write_eval_rows
from eyas.records.probe_pack import ProbeLacksBoundary, ProbeUnreadable
from eyas.replay.eval_config import EvalConfig
from eyas.replay.evaluate import Keep, evaluate, evaluate_on_probe
from eyas.replay.probe_pack import read_probe
from eyas.talk import Silent
from plain_loop import plain_loop
from tiny_draft import tiny_draft
from tiny_target import tiny_target

CONFIG = EvalConfig(num_draft_tokens=3, device="cpu")
SHAPE = {"hidden_size": 32, "target_hidden_size": 32, "vocab_size": 64, "draft_vocab_size": 60}


@pytest.fixture
def made(tmp_path):
    """Folders `target` and `draft`, and rows."""
    model = tiny_target(seed=5)
    model.save_pretrained(tmp_path / "target")
    draft = tiny_draft(**SHAPE, embedding="target", aux_boundaries=(1, 2, 4))
    save_draft(draft, tmp_path / "draft", target_spec=read_target(tmp_path / "target"))
    rows = []
    for i, first in enumerate((7, 9, 11)):
        text, _ = plain_loop(model, draft, [1, first], 1, 12 + i)
        rows.append(EvalRow(id=f"r{i}", set="ab"[i % 2], prompt_ids=tuple(text[:2]), response_ids=tuple(text[2:])))
    write_eval_rows(rows, tmp_path / "rows.jsonl")
    return tmp_path


def write(made, config: EvalConfig = CONFIG):
    keep = Keep(probe=made / "pack")
    return evaluate(made / "draft", made / "target", [made / "rows.jsonl"], config, Silent(), keep)


@pytest.mark.parametrize("switch", [{}, {"aux_norm": "per-state"}, {"embedding": "own"}])
def test_a_pack_gives_what_the_target_gives(made, switch):
    draft = tiny_draft(**{**SHAPE, "embedding": "target", "aux_boundaries": (1, 2, 4), **switch})
    save_draft(draft, made / "draft", target_spec=read_target(made / "target"), replace_existing=True)
    with_target = evaluate(made / "draft", made / "target", [made / "rows.jsonl"], CONFIG, Silent())
    written = write(made)

    without = evaluate_on_probe(made / "draft", made / "pack", CONFIG, Silent())

    assert without.rows == written.rows == with_target.rows
    assert without.as_document()["sets"] == with_target.as_document()["sets"]
    assert sum(sum(row.accepted) for row in with_target.rows) > 0
    assert without.target["weights"] == with_target.target["weights"]
    assert without.target["path"] is None


def test_a_pack_read_is_the_pack_written(made):
    write(made)
    pack = read_probe(made / "pack")

    assert [row.id for row in pack.rows] == ["r0", "r1", "r2"]
    assert sorted(pack.states) == [1, 2, 4]
    assert pack.about.boundaries == [1, 2, 4]
    assert pack.last.shape == (sum(2 + len(row.response_ids) for row in pack.rows), 32)
    table = tiny_target(seed=5).get_input_embeddings().weight
    used = pack.embedding_ids.long()
    assert torch.equal(pack.embedding(torch.float32)[used], table[used])
    assert pack.embedding(torch.bfloat16).dtype == torch.bfloat16


def test_neighbours_let_a_draft_with_other_boundaries_be_judged(made):
    write(made, replace(CONFIG, probe_neighbours=True))
    assert sorted(read_probe(made / "pack").states) == [0, 1, 2, 3, 4]
    other = tiny_draft(**SHAPE, embedding="target", aux_boundaries=(1, 3, 4))
    save_draft(other, made / "other", target_spec=read_target(made / "target"))

    on_pack = evaluate_on_probe(made / "other", made / "pack", CONFIG, Silent())

    on_target = evaluate(made / "other", made / "target", [made / "rows.jsonl"], CONFIG, Silent())
    assert on_pack.rows == on_target.rows


def test_a_boundary_that_the_pack_lacks_is_named(made):
    write(made)
    save_draft(tiny_draft(**SHAPE, aux_boundaries=(1, 3, 4)), made / "other")

    with pytest.raises(ProbeLacksBoundary, match="no states at boundary 3"):
        evaluate_on_probe(made / "other", made / "pack", CONFIG, Silent())


def test_a_draft_without_a_head_cannot_be_judged_on_a_pack(made):
    write(made)
    headless = tiny_draft(**{**SHAPE, "draft_vocab_size": 64}, head="target", aux_boundaries=(1, 2, 4))
    save_draft(headless, made / "headless", target_spec=read_target(made / "target"))

    with pytest.raises(DraftTargetMismatch, match="no head of its own"):
        evaluate_on_probe(made / "headless", made / "pack", CONFIG, Silent())


def drop_metadata(path):
    save_file(load_file(path), path)


def shorten(path):
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize("damage", [drop_metadata, shorten, lambda path: path.write_text("{}"), lambda p: p.unlink()])
def test_anything_else_is_no_pack(made, damage):
    write(made)
    damage(made / "pack")

    with pytest.raises(ProbeUnreadable):
        evaluate_on_probe(made / "draft", made / "pack", CONFIG, Silent())
