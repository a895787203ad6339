"""The command of each engine version, word for word; K, steps and top-k in both countings."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.contract.engines.launching.serve_options import Counting, ServeOptions, ServeOptionsInvalid
from eyas.contract.engines.registry import engine_named
from eyas.serve.launch.plan_words import shell_text
from recipes import headers, recipe

SGLANG = ["0.5.9", "0.5.12", "0.5.15.post1", "0.5.17", "0.5.20", "0.5.23"]
VLLM = ["0.25.1", "0.32.0", "0.33.0"]
sglang_command = engine_named("sglang").launching.command
vllm_command = engine_named("vllm").launching.command


@pytest.mark.parametrize("version", SGLANG)
def test_sglangs_command_is_the_same_in_all_versions_and_names_everything(version: str):
    command = sglang_command(recipe("sglang", version))

    assert " ".join(command.argv) == (
        "python -m sglang.launch_server --model-path T --speculative-algorithm EAGLE3 --speculative-draft-model-path D "
        "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 "
        "--host 127.0.0.1 --port 30000 --tp-size 1 --enable-metrics"
    )
    assert command.findings == ()
    assert command.url == "http://127.0.0.1:30000"
    assert "48 requests" in command.notes[0]


@pytest.mark.parametrize(
    ("version", "counted_per_answer"), [("0.25.1", ""), ("0.32.0", "summary"), ("0.33.0", "summary")]
)
def test_vllms_command_names_method_target_and_draft(version: str, counted_per_answer: str):
    command = vllm_command(recipe("vllm", version))

    words = (
        "python -m vllm.entrypoints.openai.api_server --model T --speculative-config "
        '{"method": "eagle3", "model": "D", "num_speculative_tokens": 3} '
        "--host 127.0.0.1 --port 8000 --tensor-parallel-size 1"
    )
    if counted_per_answer:
        words += f" --per-request-spec-decode-metrics {counted_per_answer}"
    assert " ".join(command.argv) == words
    assert command.findings == ()


def test_a_full_sglang_launch_of_two_nodes():
    options = ServeOptions(
        num_draft_tokens=5,
        topk=4,
        tree_tokens=16,
        tensor_parallel=16,
        nodes=2,
        node_rank=1,
        head_address="10.0.0.1:5000",
        context_length=8192,
        max_running_requests=64,
        quantization="w8a8_fp8",
        draft_attention_backend="triton",
        served_name="big",
        host="0.0.0.0",
        port=9000,
    )
    command = sglang_command(recipe("sglang", "0.5.23", "--trust-remote-code", options=options))

    assert " ".join(command.argv[3:]) == (
        "--model-path T --speculative-algorithm EAGLE3 --speculative-draft-model-path D --speculative-num-steps 5 "
        "--speculative-eagle-topk 4 --speculative-num-draft-tokens 16 --host 0.0.0.0 --port 9000 --tp-size 16 "
        "--nnodes 2 --node-rank 1 --dist-init-addr 10.0.0.1:5000 --context-length 8192 --max-running-requests 64 "
        "--quantization w8a8_fp8 --speculative-draft-model-quantization unquant "
        "--speculative-draft-attention-backend triton --served-model-name big --enable-metrics --trust-remote-code"
    )
    assert command.url == ""
    assert command.findings == ()


def test_vllms_workers_are_headless_and_its_head_is_not():
    options = ServeOptions(tensor_parallel=16, nodes=2, node_rank=1, head_address="[fe80::1]:5000")
    worker = vllm_command(recipe("vllm", "0.33.0", options=options))
    head = vllm_command(recipe("vllm", "0.33.0", options=replace(options, node_rank=0)))

    assert worker.argv[:5] == ("python", "-m", "vllm.entrypoints.cli.main", "serve", "--headless")
    assert "--host" not in worker.argv
    assert worker.url == ""
    assert worker.findings == head.findings == ()
    for command in (worker, head):
        assert " --nnodes 2 " in " ".join(command.argv)
        assert "--master-addr fe80::1 --master-port 5000" in " ".join(command.argv)
    assert "--headless" not in head.argv


def test_a_draft_shorter_than_the_served_length_gets_sglangs_variable_and_a_word():
    short = {"target_headers": headers(32768), "draft_headers": headers(2048)}
    command = sglang_command(recipe("sglang", "0.5.23", **short))
    within = sglang_command(recipe("sglang", "0.5.23", options=ServeOptions(context_length=2048), **short))

    assert command.environment == {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}
    assert any("2048 tokens" in note for note in command.notes)
    assert within.environment == {}


def test_a_multimodal_wrappers_length_is_found():
    wrapped = headers(text_config={"max_position_embeddings": 4096})

    assert recipe("vllm", "0.33.0", target_headers=wrapped).draft.target_length == 4096


def test_unknown_flags_are_refused_with_their_history():
    command = sglang_command(recipe("sglang", "0.5.23", "--cuda-graph-max-bs", "8", "--mem-fraction-statik", "0.8"))

    (gone, typo) = command.findings
    assert (gone.code, gone.severity) == ("flag-unknown", "error")
    assert "up to 0.5.17" in gone.why
    assert gone.advice == "use --cuda-graph-max-bs-decode"
    assert typo.advice == "use --mem-fraction-static"


def test_the_same_flag_is_known_where_it_still_existed():
    assert sglang_command(recipe("sglang", "0.5.17", "--cuda-graph-max-bs", "8")).findings == ()


def test_a_flag_that_eyas_sets_may_not_be_set_again():
    (finding,) = sglang_command(recipe("sglang", "0.5.23", "--port=1")).findings

    assert finding.code == "flag-given-twice"


def test_the_users_speculative_config_is_merged_and_may_not_contradict():
    merged = vllm_command(recipe("vllm", "0.33.0", "--speculative-config", '{"kv_cache_dtype": "fp8"}'))
    against = vllm_command(recipe("vllm", "0.33.0", '--speculative-config={"method": "draft_model"}'))
    broken = vllm_command(recipe("vllm", "0.33.0", "--speculative-config", "{"))

    assert '"kv_cache_dtype": "fp8"' in merged.argv[merged.argv.index("--speculative-config") + 1]
    assert merged.argv.count("--speculative-config") == 1
    assert merged.findings == ()
    assert [f.code for f in against.findings] == ["flag-given-twice"]
    assert [f.code for f in broken.findings] == ["flag-unknown"]


@given(st.integers(1, 16))
def test_k_in_a_chain_is_one_less_than_sglangs_draft_tokens_and_equal_to_vllms(k: int):
    counting = Counting.of(ServeOptions(num_draft_tokens=k))

    assert counting.sglang == (k, 1, k + 1)
    assert counting.vllm == k


def test_the_countings_are_printed_both_ways():
    assert str(Counting.of(ServeOptions(num_draft_tokens=5))) == (
        "K = 5 drafts per verify pass (bonus excluded)\n"
        "  in SGLang: steps 5, top-k 1, num-draft-tokens 6 (root included)\n"
        "  in vLLM:   num_speculative_tokens 5"
    )
    assert "chains only" in str(Counting.of(ServeOptions(topk=4)))


def test_all_option_problems_are_said_at_once():
    with pytest.raises(ServeOptionsInvalid) as caught:
        ServeOptions(num_draft_tokens=0, nodes=2, node_rank=2, tree_tokens=3, port=70000, context_length=0)

    assert caught.value.what.startswith("6 options")
    for part in ("--num-draft-tokens 0", "--node-rank 2", "--head-address", "--tree-tokens", "--port", "--context"):
        assert part in caught.value.why


def test_the_shell_text_can_be_pasted_and_hides_secrets():
    command = vllm_command(recipe("vllm", "0.25.1"))
    command = replace(command, environment={"HF_TOKEN": "hf_secret", "NCCL_DEBUG": "INFO"})
    text = shell_text(command, {"NCCL_SOCKET_IFNAME": "eth 0"})

    assert text.splitlines()[:3] == ["HF_TOKEN='(redacted)' \\", "NCCL_DEBUG=INFO \\", "NCCL_SOCKET_IFNAME='eth 0' \\"]
    assert '  --speculative-config \'{"method": "eagle3",' in text
    assert "hf_secret" not in text


def test_a_flag_that_the_launch_needs_but_the_version_lacks_is_said_before_anything_starts():
    given = recipe("sglang", "0.5.23")
    poorer = replace(given, known=replace(given.known, names=given.known.names - {"--enable-metrics"}))

    (finding,) = sglang_command(poorer).findings

    assert (finding.code, finding.severity) == ("flag-missing", "error")


def test_what_check_wants_for_this_draft_is_on_the_command_line_once():
    facts = {"window": 512, "target_is_quantised": True}
    sglang = sglang_command(recipe("sglang", "0.5.23", options=ServeOptions(quantization="fp8"), **facts))
    vllm = vllm_command(recipe("vllm", "0.33.0", is_parallel=True))

    words = " ".join(sglang.argv)
    assert "--speculative-draft-window-size 512" in words
    assert sglang.argv.count("--speculative-draft-model-quantization") == 1
    assert '"parallel_drafting": true' in vllm.argv[vllm.argv.index("--speculative-config") + 1]
    assert vllm.argv.count("--speculative-config") == 1


def test_a_draft_whose_scaled_rope_reaches_far_enough_needs_no_variable():
    headers_of = {"target_headers": headers(32768), "draft_headers": headers(2048)}
    command = sglang_command(recipe("sglang", "0.5.23", scaled_length=32768, **headers_of))

    assert command.environment == {}


@pytest.mark.parametrize(("engine", "version"), [("sglang", "0.5.23"), ("vllm", "0.33.0")])
def test_code_of_the_target_is_trusted_and_named(engine: str, version: str):
    code = ("configuration_kimi.py", "modeling_kimi.py")
    compose = engine_named(engine).launching.command
    command = compose(recipe(engine, version, target_code=code))
    given = compose(recipe(engine, version, "--trust-remote-code", target_code=code))

    assert command.argv.count("--trust-remote-code") == given.argv.count("--trust-remote-code") == 1
    assert any("configuration_kimi.py, modeling_kimi.py" in note for note in command.notes)
    assert command.findings == given.findings == ()
    assert "--trust-remote-code" not in compose(recipe(engine, version)).argv


@pytest.mark.parametrize(
    ("engine", "version", "flag", "option"),
    [
        ("sglang", "0.5.23", "--tp", "--tensor-parallel"),
        ("sglang", "0.5.23", "--tensor-parallel-size", "--tensor-parallel"),
        ("sglang", "0.5.9", "--dp", "--data-parallel"),
        ("vllm", "0.33.0", "-tp", "--tensor-parallel"),
        ("vllm", "0.25.1", "--model", "--target"),
    ],
)
def test_an_engines_own_spelling_of_an_option_is_answered_with_the_option(engine, version, flag, option):
    findings = engine_named(engine).launching.command(recipe(engine, version, flag, "8")).findings

    assert [f.severity for f in findings] == ["error"]
    assert f"use eyas' own {option}" in findings[0].advice


@pytest.mark.parametrize("version", VLLM)
def test_a_draft_shorter_than_its_target_gets_one_note_on_context(version: str):
    command = vllm_command(recipe("vllm", version, target_headers=headers(32768), draft_headers=headers(2048)))

    assert len([note for note in command.notes if "context" in note or "2048" in note]) == 1
