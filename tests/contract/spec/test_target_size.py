from eyas.contract.files.checkpoint import TensorInfo
from eyas.contract.spec.target_size import size_of_tensors
from eyas.contract.spec.target_spec import TargetSpec


def target(**text_config: object) -> TargetSpec:
    return TargetSpec(
        where="t",
        architectures=(),
        model_type="t",
        text_model_type="t",
        hidden_size=4,
        num_layers=1,
        vocab_size=10,
        text_config=text_config,
    )


def tensors(**shapes: tuple[str, tuple[int, ...]]) -> dict[str, TensorInfo]:
    return {name.replace("__", "."): TensorInfo(dtype=dtype, shape=shape) for name, (dtype, shape) in shapes.items()}


def test_embedding_head_and_towers_are_counted_but_are_not_what_a_token_goes_through():
    given = tensors(
        model__embed_tokens__weight=("BF16", (10, 4)),
        lm_head__weight=("BF16", (10, 4)),
        vision_tower__blocks__0__weight=("BF16", (7, 7)),
        model__layers__0__mlp__up_proj__weight=("BF16", (6, 4)),
    )
    size = size_of_tensors(target(), given)
    assert (size.num_params, size.num_active) == (40 + 40 + 49 + 24, 24)
    assert size.num_bytes == 2 * size.num_params


def test_of_the_experts_the_chosen_share_counts_and_shared_ones_count_whole():
    given = tensors(
        model__layers__0__mlp__experts__gate_up_proj=("BF16", (8, 4, 4)),
        model__layers__0__mlp__shared_experts__up_proj__weight=("BF16", (6, 4)),
    )
    size = size_of_tensors(target(n_routed_experts=8, num_experts_per_tok=2), given)
    assert size.num_active == 128 // 4 + 24


def test_packed_weights_hold_several_values_in_one_number():
    given = tensors(
        model__layers__0__mlp__experts__gate_up_proj_blocks=("U8", (4, 8)),
        model__layers__0__self_attn__q_proj__weight_packed=("I32", (4, 2)),
    )
    size = size_of_tensors(target(), given)
    assert (size.num_params, size.num_bytes) == (64 + 64, 32 + 32)
