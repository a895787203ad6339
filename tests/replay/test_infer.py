import json
import shutil
from contextlib import contextmanager

import pytest
import torch

from eyas import shipped
from eyas.cli.app import main
from eyas.cli.commands.infer import render
from eyas.contract.spec.draft_spec import Rope
from eyas.models.target import LiveStates, Target
from eyas.records.eval_record import InferRecord, Variant
from eyas.records.eval_rows import EvalRow
from eyas.replay.infer import as_read, changes_of, infer_switches, single_changes
from eyas.talk import Silent
from tiny_draft import tiny_draft, tiny_spec
from tiny_target import tiny_target


def test_every_single_change_differs_from_the_stated_reading_in_one_switch():
    spec = tiny_spec(aux_boundaries=(1, 2, 3))

    found = [changes_of(spec, other) for other in single_changes(spec, range(5), [1e4, 5e5])]

    assert found == [
        {"residual": "post-norm"},
        {"feedback": "post-norm"},
        {"aux_boundaries": (0, 1, 2)},
        {"aux_boundaries": (2, 3, 4)},
        {"aux_boundaries": (3, 2, 1)},
        {"rope_theta": 5e5},
        {"rope_interleaved": True},
        {"rope_theta": 5e5, "rope_interleaved": True},
    ]


def test_boundaries_that_are_not_known_are_not_tried():
    changes = [changes_of(tiny_spec(), other) for other in single_changes(tiny_spec(), (1, 2, 3), [])]

    assert [c["aux_boundaries"] for c in changes if "aux_boundaries" in c] == [(3, 2, 1)]


@pytest.mark.parametrize(("spec", "widths"), [({}, [32, 128]), ({"num_kv_heads": 1}, [32]), ({"qk_norm": True}, [])])
def test_heads_are_split_otherwise_where_shapes_do_not_tell(spec, widths):
    stated = tiny_spec(head_dim=64, **spec)
    found = [other for other in single_changes(stated, (), []) if other.head_dim != stated.head_dim]

    assert [changes_of(stated, other) for other in found] == [{"head_dim": width} for width in widths]
    assert {other.num_heads * other.head_dim for other in found} <= {stated.num_heads * 64}
    assert {other.num_kv_heads * other.head_dim for other in found} <= {stated.num_kv_heads * 64}
    for other in found:
        as_read(tiny_draft(head_dim=64, **spec), other)


def test_readings_that_are_all_the_same_are_said_to_be():
    variants = [Variant(changes=changes, accept_length=1.0, rounds=9) for changes in ({}, {"residual": "post-norm"})]
    assert "All readings give the same" in render(
        InferRecord(variants=variants, num_draft_tokens=3, num_rows=1, draft="d")
    )


def test_another_reading_shares_the_weights():
    draft = tiny_draft()

    other = as_read(draft, tiny_spec(feedback="post-norm", rope=Rope(theta=5e5)))

    assert other.fc.weight.data_ptr() == draft.fc.weight.data_ptr()
    assert torch.equal(other.d2t, draft.d2t)
    assert other.spec.feedback == "post-norm"


class Statuses(Silent):
    """Keeps what bars say."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    @contextmanager
    def progress(self, label: str, total: float | None, unit: str):
        with super().progress(label, total, unit) as bar:
            bar.say = self.said.append
            yield bar


def test_progress_says_which_reading_of_how_many():
    draft = tiny_draft(target_hidden_size=32, vocab_size=64, draft_vocab_size=24, aux_boundaries=(1, 2, 4))
    row = EvalRow(id="1", set="s", prompt_ids=(1, 2, 3), response_ids=(4, 5, 6, 7))
    talk = Statuses()

    infer_switches(
        LiveStates(Target(tiny_target("llama"))), draft, [row], 2, talk, boundaries_known=(1, 2, 4), thetas=[5e5]
    )

    assert talk.said[0].startswith("reading 1 of 1, as stated: accept length ")
    # a pass tries residual, feedback, the reversed boundaries, one theta, the pairing with each, a state normed twice
    assert talk.said[4].startswith("reading 5 of 8, rope_theta=500000.0: accept length ")


def test_the_help_lists_no_option_of_eyas_eval_alone(capsys):
    main(["eval", "--help"])
    assert "With --write-probe" in capsys.readouterr().out

    main(["infer", "--help"])
    assert "With --write-probe" not in capsys.readouterr().out


@pytest.mark.smollm2
@pytest.mark.timeout(1200)
def test_two_wrong_switches_in_the_config_of_the_real_draft_are_found(smollm2_folder, tmp_path, capsys):
    folder = tmp_path / "draft"
    shutil.copytree(shipped.draft_folder(), folder)
    (folder / "eyas.json").unlink(missing_ok=True)
    config = json.loads((folder / "config.json").read_text())
    config |= {"norm_before_residual": True, "norm_output": True}
    (folder / "config.json").write_text(json.dumps(config))

    code = main(
        [
            "infer",
            str(folder),
            "--target",
            str(smollm2_folder),
            "-k",
            "3",
            "--max-rows",
            "2",
            "--device",
            "cpu",
            "--json",
        ]
    )

    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    best = document["variants"][0]
    assert code == 1
    assert not document["stated_is_best"]
    assert best["changes"]["residual"] == best["changes"]["feedback"] == "pre-norm"
    stated = next(v for v in document["variants"] if not v["changes"])
    assert stated["accept_length"] < 1.3 < 1.6 < best["accept_length"]
