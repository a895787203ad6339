"""The fields of a load rule set: what a loader class of one engine version does with names, shapes and keys. Data only.

Each engine's folder holds its sets (`rules.toml`); `runtime_parameters.py` and `load_tensors.py` apply them.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRules:
    """One draft class of one engine, from one version on.

    Attributes:
        draft_class: name of the runtime class; `kind`: which of the layer layouts it builds.
        since: first version it holds for; until the next set of the same class.
        source: file and version it was read in.

        Names, in the order they are applied:
        renames: (old, new) substrings, each replaced everywhere (`rename_at_start`: only as a prefix).
        map_match: how d2t / t2d are recognised: the name contains them, or is or ends with them.
        prefix: a runtime name is the stored one, then "model." + it ("try"), or always "model." + it unless the name
            starts with / contains lm_head ("unless-starts", "unless-contains"; the latter also leaves such a name
            as it is and renames only the first occurrence).
        fused_a: runtime name of the two A projections of MLA.
        unmatched: what happens to a name with no parameter: silent / warning / crash; with crash, an unexpected
            `*.bias` of an existing module is dropped in silence all the same.

        Structure:
        layer_module: "midlayer" (one layer only) or "layers.{i}".
        max_layers: more is a crash; None = any number.
        deep_norm: norm that layers >= 1 apply to the fused stream.
        num_aux: config paths read for the number of aux states, first found wins, else 3.
        fc_norm_keys / input_norm_keys: config paths that switch the norms on; () = the class has none.
        reads_residual: honours norm_before_residual. feedback_keys: config paths that feed the normed state back.
        qkv_bias: builds q/k/v biases when attention_bias is set; o_bias_keys: config keys that give o_proj a bias.
        fc_bias_key: config key that gives fc a bias, None = never has one. mlp_bias_key: likewise for gate, up, down.
        bias_start: what a bias holds that no tensor fills.
        qk_norm: builds q_norm / k_norm.
        ties_head: `tie_word_embeddings` makes the head the (target's) embedding.
        needs_draft_vocab_key: a missing draft_vocab_size is a crash.
        head_absent: without lm_head in the checkpoint: uninitialised, or the target's (or the target's only if no
            stored name contains lm_head).
        map_parameter: runtime name of the vocabulary map; map_when_full: it exists (and takes d2t) also when
            draft and target vocabulary are equal; map_is_parameter: an ordinary one, whose name and shape are checked
            and that holds zeros at first (else an attribute that is absent).
        own_embedding: the draft's embedding is used if it is there; otherwise the target's overwrites it.
        compares_widths: draft and target share only if their hidden sizes are equal, whatever target_hidden_size says.
        head_by_key: a head is taken from the target if and only if draft_vocab_size is null.
        needs_q_lora_rank: an MLA layer without it is a crash. takes_null_width: target_hidden_size may be null.
        skips_square_fc: fc is skipped where its input is as wide as its output.
        refused_rope: (rope_type that its get_rope raises at, first version that takes it or "").
        reads_aux_switch: without use_aux_hidden_state there is no fc. parallel: the class can draft in parallel
            (P-EAGLE) and knows mask_hidden. drops_norms_off: an input_norm that is switched off is dropped in silence.
        checks_activation: an activation other than silu is a crash.
        casts_to_target: the draft computes in the target's dtype, whatever its config says.
        mlp_widths: (model_type, key, default) where the MLP is not intermediate_size wide.

        Shapes:
        cuts_long: a projection too long on its sharded axis is cut in silence.
        pads_short: one too short there (gate, up, o, down) is padded with zeros in silence; otherwise a crash.
        fc_is_sharded: fc is cut likewise on its rows.
        quantises_fc: fc is built with the draft's quantisation; False = fp8 or int values are cast without scale.
        window: a sliding window is read from the config, from a launch flag, or ignored.
        fuses_a_by_pair: q_a_proj and kv_a_proj_with_mqa are joined first: one alone is never loaded, in silence.
    """

    engine: str
    draft_class: str
    kind: Literal["llama", "qwen3", "mla"]
    since: str
    source: str
    renames: tuple[tuple[str, str], ...] = ()
    rename_at_start: tuple[tuple[str, str], ...] = ()
    map_match: Literal["contains", "suffix"] = "contains"
    fused_a: str = "fused_qkv_a_proj"
    prefix: Literal["try", "unless-starts", "unless-contains"]
    unmatched: Literal["silent", "warning", "crash"]
    layer_module: str
    max_layers: int | None = None
    deep_norm: Literal["hidden_norm", "input_layernorm"]
    num_aux: tuple[str, ...]
    fc_norm_keys: tuple[str, ...] = ()
    input_norm_keys: tuple[str, ...] = ()
    reads_residual: bool
    feedback_keys: tuple[str, ...] = ()
    qkv_bias: bool
    o_bias_keys: tuple[str, ...] = ()
    fc_bias_key: str | None = None
    mlp_bias_key: str | None = None
    bias_start: Literal["zeros", "uninitialised"]
    qk_norm: bool = False
    ties_head: bool
    needs_draft_vocab_key: bool
    head_absent: Literal["uninitialised", "target", "target-unless-named"]
    map_parameter: str
    map_when_full: bool
    map_is_parameter: bool = False
    own_embedding: bool
    compares_widths: bool = False
    head_by_key: bool = False
    needs_q_lora_rank: bool = False
    takes_null_width: bool = False
    skips_square_fc: bool = False
    reads_aux_switch: bool = False
    parallel: bool = False
    drops_norms_off: bool = False
    checks_activation: bool = True
    casts_to_target: bool = False
    mlp_widths: tuple[tuple[str, str, int], ...] = ()
    cuts_long: bool = True
    pads_short: bool = False
    fc_is_sharded: bool = False
    quantises_fc: bool = False
    window: Literal["config", "flag", "ignored"] = "ignored"
    fuses_a_by_pair: bool = False
    refused_rope: tuple[tuple[str, str], ...] = ()


def read_rules(engine: str, folder: Path) -> tuple[tuple[LoadRules, ...], Mapping[str, Any]]:
    """The rule sets of an engine's `rules.toml`, and what else that file holds."""
    table = tomllib.loads((folder / "rules.toml").read_text(encoding="utf-8"))
    sets: dict[tuple[str, str], dict[str, Any]] = {}
    for row in table.pop("rules"):
        base = sets[tuple(row.pop("like"))] if "like" in row else {"engine": engine}
        absent = dict.fromkeys(row.pop("none", ()))
        own = {name: _frozen(value) for name, value in row.items()}
        sets[row["draft_class"], row["since"]] = {**base, **absent, **own}
    return tuple(LoadRules(**values) for values in sets.values()), table


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
