"""The recipes in the repository: every option exists, every shape fits the public target, and the costs are known."""

import json
from pathlib import Path

import pytest

from eyas.cli.app import build_app
from eyas.cli.recipe_file import read_recipe, with_recipe
from eyas.contract.spec.draft_spec import DraftSpec
from eyas.contract.spec.target_spec import TargetSpec, read_target
from eyas.data.prepare_config import WritingConfig
from eyas.models.save_draft import choose_dialect
from eyas.models.target.loading import size_of_config
from eyas.train.config import TrainConfig
from eyas.train.preflight.costs import draft_size, estimate_costs
from eyas.train.preflight.draft_spec import draft_spec_for

ROOT = Path(__file__).parents[3]
RECIPES = sorted(p for p in (ROOT / "recipes").glob("*.yaml") if not p.name.startswith("smollm2"))
NAMES = [path.stem for path in RECIPES]
# heads, key/value heads, head width, MLP, boundaries, draft vocabulary, format. As in the drafts that are released:
# yuhuili and SpecForge for Llama and Qwen3, nvidia for gpt-oss (sglang#32334), TorchSpec's kimi_k25_eagle3_mla.
SHAPES = {
    "llama-3.1-8b": (32, 8, 128, 14336, (2, 16, 29), 32000, "sglang"),
    "qwen3-8b": (32, 8, 128, 12288, (2, 18, 33), 32000, "sglang"),
    "qwen3-32b": (64, 8, 128, 13824, (2, 32, 61), 32000, "sglang"),
    "gpt-oss-20b": (64, 8, 64, 17280, (2, 12, 21), 32000, "sglang"),
    "gpt-oss-120b": (64, 8, 64, 17280, (2, 18, 33), 32000, "sglang"),
    "kimi-k2.5": (64, 64, 192, 18432, (2, 30, 58), 163840, "sglang"),
}


def public_target(name: str) -> TargetSpec:
    return read_target(Path(__file__).parent / "public_targets" / f"{name}.json")


def options_of(path: Path, command: str) -> dict[str, object]:
    """What the command would be called with."""
    app = build_app()
    tokens = with_recipe([command, "--config", str(path)], app)
    _, bound, _ = app.parse_args(tokens, exit_on_error=False, print_error=False)
    return dict(bound.arguments)


def train_config(path: Path) -> TrainConfig:
    config = options_of(path, "train")["config"]
    assert isinstance(config, TrainConfig)
    return config


def planned_draft(name: str, config: TrainConfig) -> tuple[TargetSpec, DraftSpec]:
    target = public_target(name)
    assert target.vocab_size is not None
    spec = draft_spec_for(
        target,
        vocab_size=target.vocab_size,
        draft_vocab_size=config.offered or target.vocab_size,
        trained_length=2048,
        aux_boundaries=config.aux_boundaries,
        shape=config.shape,
    )
    return target, spec


# Targets that only an engine can hold: it answers, and hands over the states.
SERVED = {"kimi-k2.5"}


def test_there_is_a_recipe_and_a_public_config_for_each_target():
    assert set(NAMES) == set(SHAPES)


@pytest.mark.parametrize("path", RECIPES, ids=NAMES)
def test_every_option_of_a_recipe_exists_and_both_commands_meet(path):
    prepare, train = options_of(path, "prepare"), options_of(path, "train")
    assert prepare["out"] == train["data"]
    assert prepare["target"] == train["target"]
    serve = options_of(path, "serve") if path.stem in SERVED else None
    assert set(read_recipe(path)) == {"prepare", "train", *(["serve"] if serve else [])}
    if serve:
        assert serve["target"] == train["target"]
        assert serve["capture"]
        writing = prepare["writing"]
        assert isinstance(writing, WritingConfig)
        assert train["stream"] == list(writing.url)


@pytest.mark.parametrize("path", RECIPES, ids=NAMES)
def test_the_draft_has_the_shape_of_the_released_ones(path):
    target, spec = planned_draft(path.stem, train_config(path))
    heads, kv_heads, width, wide, boundaries, vocabulary, dialect = SHAPES[path.stem]

    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim) == (heads, kv_heads, width)
    assert (spec.intermediate_size, spec.aux_boundaries, spec.draft_vocab_size) == (wide, boundaries, vocabulary)
    assert spec.hidden_size == spec.target_hidden_size == target.hidden_size
    assert spec.rope.theta == target.rope.theta
    assert spec.rope.scaling == target.rope.scaling
    assert choose_dialect(spec, target, where="test").dialect.name == dialect


def test_the_latent_draft_has_the_sizes_of_torchspec_s():
    _, spec = planned_draft("kimi-k2.5", train_config(ROOT / "recipes" / "kimi-k2.5.yaml"))
    assert spec.mla is not None
    assert (spec.mla.q_lora_rank, spec.mla.kv_lora_rank) == (1536, 512)
    assert (spec.mla.qk_nope_head_dim, spec.mla.qk_rope_head_dim, spec.mla.v_head_dim) == (128, 64, 128)
    assert (spec.rope.interleaved, spec.model_type) == (True, "kimi_k2")


@pytest.mark.parametrize("path", RECIPES, ids=NAMES)
def test_the_costs_are_known_without_any_weight(path):
    config = train_config(path)
    target, spec = planned_draft(path.stem, config)
    size = size_of_config(target)
    published = json.loads(Path(target.where).read_text())["_billions"]

    costs = estimate_costs(spec, config, target=size, longest=2048)

    assert size.num_params / 1e9 == pytest.approx(published, rel=0.002)
    assert costs.num_trained == draft_size(spec).total()
    # A forward pass of the layers, and seven or four steps of a draft forward and backward.
    assert 2 * size.num_active < costs.flop_per_token < 2 * size.num_active + 60 * costs.num_trained
    assert costs.peak_bytes > size.num_bytes + 16 * costs.num_trained


@pytest.mark.parametrize(("name", "billions"), [("gpt-oss-20b", 3.6), ("gpt-oss-120b", 5.1), ("kimi-k2.5", 32.0)])
def test_of_a_mixture_only_the_chosen_experts_count_as_arithmetic(name, billions):
    target = public_target(name)
    head = (target.vocab_size or 0) * target.hidden_size
    assert (size_of_config(target).num_active + head) / 1e9 == pytest.approx(billions, rel=0.015)
