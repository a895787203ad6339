"""`check` as a library: everything at once, nothing said twice, nothing raised for a merely broken draft."""

import pytest

import damage_matrix
from eyas.contract.check.check import CheckOptions, check
from eyas.contract.engines.registry import parse_engine
from eyas.contract.files.read_checkpoint import read_checkpoint, read_target_checkpoint
from eyas.diagnostic import SEVERITIES


@pytest.fixture
def target(tmp_path):
    return read_target_checkpoint(damage_matrix.write_target(tmp_path / "target"))


def _read(draft, tmp_path, name="draft"):
    return read_checkpoint(damage_matrix.write(draft, tmp_path / name))


def _check(draft, target, *engines, **options):
    return check(draft, target, [parse_engine(e) for e in engines], CheckOptions(**options))


def test_without_an_engine_it_says_so(tmp_path):
    report = check(_read(damage_matrix.build("intact"), tmp_path), None, [])

    assert [f.code for f in report.findings if f.code == "no-engine-asked"] == ["no-engine-asked"]
    assert report.ledgers == {}


def test_findings_come_worst_first_and_once(tmp_path, target):
    draft = damage_matrix.build("missing-d2t").drop("midlayer.self_attn.q_proj.weight").set(norm_before_residual=True)

    report = _check(_read(draft, tmp_path), target, "sglang==0.5.23", "vllm==0.33.0")

    ranks = [SEVERITIES.index(f.severity) for f in report.findings]
    assert ranks == sorted(ranks, reverse=True)
    keys = [(f.code, f.engine, f.what) for f in report.findings]
    assert len(keys) == len(set(keys))


def test_a_misspelt_draft_vocab_size_is_one_finding_with_the_rows_of_the_head(tmp_path, target):
    draft = damage_matrix.build("intact").unset("draft_vocab_size").set(draft_vocabsize=damage_matrix.DRAFT_VOCAB)

    report = _check(_read(draft, tmp_path), target, "sglang==0.5.23", "vllm==0.33.0")

    [error] = [f for f in report.findings if f.severity in ("error", "fatal")]
    assert error.advice == f"write \"draft_vocab_size\": {damage_matrix.DRAFT_VOCAB} in place of 'draft_vocabsize'"
    assert [ledger.verdict for ledger in report.ledgers.values()] == ["crash", "crash"]
    assert (
        f'"draft_vocab_size": {damage_matrix.DRAFT_VOCAB},'
        in report.ledgers["sglang==0.5.23"].reasons[0].diagnostic.advice
    )
    assert None not in map(report.withheld, report.ledgers)


def test_worst_of_one_engine_leaves_out_what_hurts_another(tmp_path, target):
    report = _check(_read(damage_matrix.build("intact-layers0"), tmp_path), target, "sglang==0.5.9", "sglang==0.5.23")

    assert report.worst() == "fatal"
    assert report.worst("sglang==0.5.9") == "fatal"
    assert report.worst(parse_engine("sglang==0.5.23")) == "note"


def test_eagle_instead_of_eagle3_accepts_nothing_on_sglang_and_is_refused_by_vllm(tmp_path, target):
    report = _check(
        _read(damage_matrix.build("intact"), tmp_path), target, "sglang==0.5.23", "vllm==0.33.0", algorithm="EAGLE"
    )

    assert report.ledgers["sglang==0.5.23"].severity == "fatal"
    assert report.ledgers["vllm==0.33.0"].verdict == "refuses"


def test_a_shorter_draft_needs_the_environment_variable_on_sglang(tmp_path, target):
    draft = _read(damage_matrix.build("intact").set(max_position_embeddings=1024), tmp_path)

    report = _check(draft, target, "sglang==0.5.23", num_draft_tokens=5)

    launch = report.launch["sglang==0.5.23"]
    assert launch.environment == {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}
    flags = dict(zip(launch.flags[::2], launch.flags[1::2], strict=False))
    assert flags["--speculative-algorithm"] == "EAGLE3"
    assert (flags["--speculative-num-steps"], flags["--speculative-num-draft-tokens"]) == ("5", "6")


def test_a_sliding_window_is_a_flag_on_sglang_and_lost_before_it(tmp_path, target):
    draft = damage_matrix.build("intact").set(sliding_window=256, layer_types=["sliding_attention"])

    report = _check(_read(draft, tmp_path), target, "sglang==0.5.9", "sglang==0.5.23", "vllm==0.33.0")

    assert "--speculative-draft-window-size" in report.launch["sglang==0.5.23"].flags
    assert report.ledgers["sglang==0.5.9"].severity == "mild"
    assert report.ledgers["vllm==0.33.0"].verdict == "ok"


def test_vllm_names_the_method_and_the_draft(tmp_path, target):
    draft = _read(damage_matrix.build("intact"), tmp_path)

    report = _check(draft, target, "vllm==0.33.0")

    flag, settings = report.launch["vllm==0.33.0"].flags
    assert flag == "--speculative-config"
    assert '"method": "eagle3"' in settings
    assert draft.where in settings


def test_both_runners_of_vllm_get_a_verdict(tmp_path, target):
    report = _check(_read(damage_matrix.build("intact"), tmp_path), target, "vllm==0.33.0")

    assert report.ledgers["vllm==0.33.0"].verdict == "ok"
    assert report.other_runners["vllm==0.33.0"].verdict == "silent-damage"
    assert "runner-differs" in {f.code for f in report.findings}


def test_a_moe_target_keeps_the_v1_runner_on_vllm_0_25(tmp_path):
    folder = damage_matrix.write_target(tmp_path / "moe")
    config = {**damage_matrix.TARGET_CONFIG, "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 8}
    (folder / "config.json").write_text(__import__("json").dumps(config))

    report = _check(_read(damage_matrix.build("intact"), tmp_path), read_target_checkpoint(folder), "vllm==0.25.1")

    assert report.ledgers["vllm==0.25.1"].runner == "v1"


def test_the_target_hook_is_looked_up_by_version(tmp_path):
    folder = damage_matrix.write_target(tmp_path / "kimi")
    config = {**damage_matrix.TARGET_CONFIG, "architectures": ["KimiK25ForConditionalGeneration"]}
    (folder / "config.json").write_text(__import__("json").dumps(config))
    draft, target = _read(damage_matrix.build("intact"), tmp_path), read_target_checkpoint(folder)

    report = _check(draft, target, "sglang==0.5.9", "sglang==0.5.10")

    hook = [f for f in report.findings if f.code == "target-hook-missing"]
    assert [f.engine for f in hook] == ["sglang==0.5.9"]
    assert "0.5.10 or newer" in hook[0].advice


def test_an_approximated_version_says_so_loudly(tmp_path, target):
    draft = _read(damage_matrix.build("intact"), tmp_path)

    report = check(draft, target, [parse_engine("sglang==0.6.0", nearest=True)])

    loud = [f for f in report.findings if f.code == "engine-approximated"]
    assert loud[0].severity == "warning"
    assert report.ledgers["sglang==0.6.0"].grade == "inferred"


def test_a_ledger_accounts_for_every_tensor_and_every_key(tmp_path, target):
    draft = _read(damage_matrix.build("eagle-3.1"), tmp_path)

    report = _check(draft, target, "sglang==0.5.9", "sglang==0.5.23", "vllm==0.33.0")

    for ledger in report.ledgers.values():
        assert {t.name for t in ledger.tensors} == set(draft.tensors)
        top = {k.key.split(".")[0] for k in ledger.keys}
        assert top == set(draft.config)


def test_the_dtype_of_a_drafts_config_is_read_by_sglang_and_not_by_vllm(tmp_path, target):
    draft = _read(damage_matrix.build("intact").set(torch_dtype="bfloat16"), tmp_path)

    report = _check(draft, target, "sglang==0.5.23", "vllm==0.33.0")

    fates = {label: {k.key: k.fate for k in ledger.keys} for label, ledger in report.ledgers.items()}
    assert [fates[label]["torch_dtype"] for label in ("sglang==0.5.23", "vllm==0.33.0")] == ["read", "inert"]


def test_a_draft_that_eyas_cannot_read_is_still_judged_by_the_engines_rules(tmp_path, target):
    draft = damage_matrix.build("intact").drop("fc.weight").unset("eagle_config", "draft_vocab_size")
    draft.set(architectures=["LlamaForCausalLM"]).drop("d2t").drop("t2d").drop("midlayer.hidden_norm.weight")

    report = _check(_read(draft, tmp_path), target, "sglang==0.5.23")

    assert report.ledgers["sglang==0.5.23"].verdict == "crash"
    assert report.worst() in ("error", "fatal")
