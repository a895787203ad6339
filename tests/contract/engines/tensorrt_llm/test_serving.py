"""trtllm-serve's counters in both forms, from answers as its own tests and documentation show them."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from eyas.client.address import ServerAddress
from eyas.client.counters import read
from eyas.client.prometheus import parse
from eyas.contract.engines.registry import server_api
from eyas.contract.engines.tensorrt_llm.serving import counters_of_iterations, counters_of_page, iterations

PAGE = """\
# TYPE trtllm_generation_tokens_total counter
trtllm_generation_tokens_total{engine_type="trtllm",model_name="m"} 840.0
trtllm_prompt_tokens_total{engine_type="trtllm",model_name="m"} 120.0
trtllm_num_requests_running{engine_type="trtllm",model_name="m"} 3.0
trtllm_num_requests_waiting{engine_type="trtllm",model_name="m"} 1.0
trtllm_spec_decode_num_draft_tokens_total{engine_type="trtllm",model_name="m"} 900.0
trtllm_spec_decode_num_accepted_tokens_total{engine_type="trtllm",model_name="m"} 540.0
trtllm_spec_decode_acceptance_length{engine_type="trtllm",model_name="m"} 2.8
"""


def _iteration(number, active, passes, accepted):
    spec = {"numDraftTokens": 3 * passes, "numAcceptedTokens": accepted, "numRequestsWithDraftTokens": passes}
    return {
        "iter": number,
        "iterLatencyMS": 20.0,
        "numActiveRequests": active,
        "numQueuedRequests": 0,
        "specDecodingStats": {**spec, "acceptanceLength": 1 + accepted / passes} if passes else None,
    }


ROWS = [_iteration(7, 8, 0, 0), _iteration(8, 8, 8, 12), _iteration(9, 5, 4, 12)]


class _Handler(BaseHTTPRequestHandler):
    pages: dict[str, str]

    def do_GET(self):
        text = self.pages.get(self.path)
        self.send_response(404 if text is None else 200)
        self.end_headers()
        self.wfile.write((text or "").encode())

    def log_message(self, *args):
        pass


@pytest.fixture
def served():
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"pages": {}}))
    Thread(target=server.serve_forever, daemon=True).start()
    yield server.RequestHandlerClass.pages, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def test_the_prometheus_page_is_read_where_there_is_one(served):
    pages, url = served
    pages |= {"/prometheus/metrics": PAGE, "/metrics": json.dumps(ROWS)}

    counters = read(ServerAddress(url=url, api=server_api("tensorrt-llm")))

    assert counters == counters_of_page(parse(PAGE))
    assert counters.generated_tokens == 840.0
    assert (counters.running, counters.waiting, counters.speculates) == (3, 1, True)
    assert counters.accept_lengths == {"0": 2.8}
    assert counters.progress_mark == (840.0, 120.0, 900.0)


def test_otherwise_the_iterations_since_the_last_look_are(served):
    pages, url = served
    pages |= {"/metrics": json.dumps(ROWS)}

    counters = read(ServerAddress(url=url, api=server_api("tensorrt-llm")))

    assert (counters.running, counters.waiting, counters.speculates) == (5, 0, True)
    assert counters.accept_lengths == {"0": 3.0}  # 12 passes, 24 accepted
    assert counters.progress_mark == (9.0,)
    assert counters.generated_tokens is None


@pytest.mark.parametrize("text", ["", "[]", "{}", "nonsense", "[1, null]", "[" * 100_000, '{"detail": "x"}', None])
def test_an_answer_without_iterations_says_what_to_switch_on(text):
    counters = counters_of_iterations(iterations(text))

    assert counters.speculates is None
    assert "enable_iter_perf_stats" in counters.notes[0]


@pytest.mark.parametrize("spec", [{}, {"numDraftTokens": -1}, {"numAcceptedTokens": "many"}, 3, None, {"x": True}])
def test_odd_iterations_count_as_nothing(spec):
    counters = counters_of_iterations([{"iter": "7", "numActiveRequests": True, "specDecodingStats": spec}])

    assert (counters.running, counters.speculates, dict(counters.accept_lengths)) == (0, None, {})
