"""A probe pack from outside: whatever is wrong with it is said as ProbeUnreadable, and nothing wrong is accepted."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from eyas.contract.spec.target_spec import read_target
from eyas.models.save_draft import save_draft
from eyas.records.eval_rows import EvalRow, write_eval_rows
from eyas.records.probe_pack import ProbeUnreadable
from eyas.replay.eval_config import EvalConfig
from eyas.replay.evaluate import Keep, evaluate
from eyas.replay.probe_pack import read_probe
from eyas.talk import Silent
from tiny_draft import tiny_draft
from tiny_target import tiny_target


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory):
    """A good pack's tensors and description."""
    made = tmp_path_factory.mktemp("pack")
    tiny_target().save_pretrained(made / "target")
    draft = tiny_draft(hidden_size=32, target_hidden_size=32, vocab_size=64, draft_vocab_size=60)
    save_draft(draft, made / "draft", target_spec=read_target(made / "target"))
    rows = [EvalRow(id=f"r{i}", set="a", prompt_ids=(1, 5), response_ids=(7, 9 + i)) for i in range(2)]
    write_eval_rows(rows, made / "rows.jsonl")
    config = EvalConfig(num_draft_tokens=1, device="cpu")
    evaluate(
        made / "draft", made / "target", [made / "rows.jsonl"], config, Silent(), Keep(probe=made / "p.safetensors")
    )
    with safe_open(made / "p.safetensors", "pt") as file:
        about = json.loads(file.metadata()["eyas"])
    return load_file(made / "p.safetensors"), about


def write(path: Path, tensors, about) -> Path:
    kept = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(kept, path, metadata={"eyas": about if isinstance(about, str) else json.dumps(about)})
    return path


def test_the_good_pack_is_read(tmp_path: Path, pack):
    assert len(read_probe(write(tmp_path / "p", *pack)).rows) == 2


FIELDS = ["target", "num_layers", "vocab_size", "boundaries", "row_ids", "row_sets", "dtype", "fingerprint"]


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", [None, {}, -1, 0.5, [None], 1 << 62])
def test_a_field_of_another_type_is_refused(tmp_path: Path, pack, field: str, value: object):
    tensors, about = pack
    with pytest.raises(ProbeUnreadable):
        read_probe(write(tmp_path / "p", tensors, about | {field: value}))


DAMAGE = {
    "empty": lambda t: t[:0],
    "short": lambda t: t[:-1],
    "deeper": lambda t: t.reshape(1, *t.shape),
    "bool": lambda t: t.bool(),
    "negative": lambda t: -t.long() - 1,
    "huge": lambda t: t.long() + (1 << 40),
    "not a number": lambda t: t.double() * float("nan"),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize(
    "name", ["token_ids", "row_starts", "num_prompt", "last", "state.1", "embedding_ids", "embedding_rows"]
)
def test_a_tensor_that_does_not_fit_is_refused(tmp_path: Path, pack, name: str, damage: str):
    tensors, about = pack
    with pytest.raises(ProbeUnreadable):
        read_probe(write(tmp_path / "p", tensors | {name: DAMAGE[damage](tensors[name])}, about))


@pytest.mark.parametrize("name", ["token_ids", "row_starts", "num_prompt", "last", "embedding_ids", "embedding_rows"])
def test_a_tensor_that_is_absent_is_refused(tmp_path: Path, pack, name: str):
    tensors, about = pack
    with pytest.raises(ProbeUnreadable):
        read_probe(write(tmp_path / "p", {key: value for key, value in tensors.items() if key != name}, about))


def test_a_boundary_that_the_target_has_not_is_refused(tmp_path: Path, pack):
    tensors, about = pack
    for name in ("state.99", "state.x", "state.-1"):
        with pytest.raises(ProbeUnreadable):
            read_probe(write(tmp_path / "p", tensors | {name: torch.zeros_like(tensors["last"])}, about))


def test_a_bomb_of_brackets_in_the_description_is_refused(tmp_path: Path, pack):
    with pytest.raises(ProbeUnreadable):
        read_probe(write(tmp_path / "p", pack[0], "[" * 100_000))
