from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from eyas.contract.spec.target_spec import read_target
from eyas.models.save_draft import save_draft
from eyas.talk import Silent
from eyas.train.config import TrainConfig, TrainConfigInvalid
from eyas.train.preflight.draft_spec import freeze_notes
from eyas.train.preflight.examine import plan_train
from eyas.train.preflight.starting_draft import freeze
from eyas.train.request import TrainRequest
from eyas.train.run.train import train
from tiny_draft import VOCAB, tiny_draft
from train_run_folder import make_run_folder

OWNERS = list(product(("own", "target", "tied"), ("own", "target")))


@pytest.mark.parametrize(("head", "embedding"), OWNERS)
@pytest.mark.parametrize(("freeze_head", "freeze_embedding"), list(product((False, True), repeat=2)))
def test_an_option_freezes_what_it_names_and_nothing_else_or_it_is_told(head, embedding, freeze_head, freeze_embedding):
    draft = tiny_draft(head=head, embedding=embedding, draft_vocab_size=VOCAB)
    config = TrainConfig(freeze_head=freeze_head, freeze_embedding=freeze_embedding)
    asked = {"head": freeze_head, "embedding": freeze_embedding}
    tensors = {"head": draft.head_weight, "embedding": draft.embedding_weight}
    was_trained = {part: tensor.requires_grad for part, tensor in tensors.items()}
    try:
        notes = " ".join(freeze_notes(draft.spec, config, "d"))
    except TrainConfigInvalid:
        assert tensors["head"] is tensors["embedding"]
        assert freeze_head != freeze_embedding
        return

    freeze(draft, config)

    for part, tensor in tensors.items():
        assert tensor.requires_grad == (was_trained[part] and not asked[part])
        assert (f"--freeze-{part} has nothing to freeze" in notes) == (asked[part] and not was_trained[part])
    others = {name: p for name, p in draft.named_parameters() if not name.startswith(("lm_head", "embed_tokens"))}
    assert all(p.requires_grad for p in others.values())


def tied_draft(folder: Path, target: Path) -> Path:
    spec = read_target(target)
    draft = tiny_draft(
        head="tied",
        embedding="own",
        hidden_size=spec.hidden_size,
        target_hidden_size=spec.hidden_size,
        vocab_size=spec.vocab_size,
        draft_vocab_size=spec.vocab_size,
        residual="post-norm",
    )
    save_draft(draft, folder, target_spec=spec)
    return folder


def test_of_a_tied_draft_that_is_gone_on_from_both_are_frozen_or_neither(tmp_path: Path):
    target, rows = make_run_folder(tmp_path)
    request = TrainRequest(
        target=target, rows=rows, out=tmp_path / "d", device="cpu", init_from=tied_draft(tmp_path / "tied", target)
    )
    config = TrainConfig(steps=1, ttt_steps=2, eval_every=0)
    for given in ({"freeze_head": True}, {"freeze_embedding": True}):
        with pytest.raises(TrainConfigInvalid, match="head and its embedding are one tensor"):
            plan_train(request, replace(config, **given), Silent())
    both = replace(config, freeze_head=True, freeze_embedding=True)

    train(request, both, plan_train(request, both, Silent()), Silent())

    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("tied", "d"))
    (embedding,) = (name for name in before if "embed_tokens" in name)
    assert torch.equal(before[embedding], after[embedding])
    assert any(not torch.equal(before[name], after[name]) for name in before)
