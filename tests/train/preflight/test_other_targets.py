"""The main job on targets outside the fast path: prepared, trained on, decoded with."""

from dataclasses import replace
from pathlib import Path

import pytest

from eyas.engine.engine import Limits
from eyas.engine.open_engine import open_engine
from eyas.models.placement import place
from eyas.talk import Silent
from eyas.train.config import DraftShape, TrainConfig
from eyas.train.preflight.examine import plan_train
from eyas.train.request import TrainRequest
from eyas.train.run.train import train
from train_run_folder import make_run_folder

CONFIG = TrainConfig(
    aux_boundaries=(2, 3, 4), steps=6, batch_tokens=1500, draft_vocab_size=32, ttt_steps=3, lr=3e-3, eval_every=0
)


QUICK, SLOW = ["gpt_oss", "gemma3", "kimi_k25", "qwen3_next"], ["qwen3_moe", "deepseek_v3", "llama4"]


@pytest.mark.parametrize("kind", [*QUICK, *(pytest.param(kind, marks=pytest.mark.soak) for kind in SLOW)])
def test_a_draft_for_any_target_learns_loads_and_leaves_the_text_as_it_is(kind: str, tmp_path: Path):
    target, rows = make_run_folder(tmp_path, kind=kind, num_hidden_layers=6)
    shape = DraftShape(attention="mla") if kind in ("deepseek_v3", "kimi_k25") else DraftShape()
    request = TrainRequest(target=target, rows=rows, out=tmp_path / "draft", device="cpu")
    config = replace(CONFIG, shape=shape)

    done = train(request, config, plan_train(request, config, Silent()), Silent())

    assert done.metrics[-1]["loss"] < done.metrics[0]["loss"]
    cpu, talk = place("float32", "cpu"), Silent()
    opened = open_engine(target, tmp_path / "draft", cpu, cache=tmp_path, num_threads=1, talk=talk)
    assert opened.target_path == "transformers"
    prompt = [ord(c) for c in "Question 3?"]
    plain, text = (opened.engine.generate(prompt, Limits(max_new_tokens=16), num_draft_tokens=k).ids for k in (0, 3))
    assert text == plain
