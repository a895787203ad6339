"""The speed card: tokens per second with spread, speedup beside accept length and ceiling, a passage token by token."""

from collections.abc import Mapping
from typing import Any

from eyas.report import svg
from eyas.report.documents import RunDocuments
from eyas.report.drafts import draft_words
from eyas.report.page import Block, Chart, LegendKey, Paragraph, Section, Table, Tokens, TokenSpan, Verdict

BENCH = "eyas.bench"
_DEEPEST_COLOUR = 5  # page.css has d1 … d5; deeper drafts share the last


def bench_verdicts(runs: RunDocuments) -> list[Verdict]:
    """The sentence at the top, one per benchmark: good when speculation is surely faster, bad when surely slower."""
    return [
        Verdict(text=d.content["verdict"], draft=draft_words(d.content), tone=_tone(d.content)) for d in runs.of(BENCH)
    ]


def bench_sections(runs: RunDocuments) -> list[Section]:
    """Nothing, or one card per benchmark found."""
    return [_section(n, d.path, d.content) for n, d in enumerate(runs.of(BENCH))]


def _section(number: int, path: str, content: Mapping[str, Any]) -> Section:
    if content.get("batches"):
        return _batches(number, path, content)
    comparisons = content["comparisons"]
    speeds = [
        svg.Range(
            label=f"{f['arm']}, {f['set']}",
            low=f["tokens_per_s"]["minimum"],
            median=f["tokens_per_s"]["median"],
            high=f["tokens_per_s"]["maximum"],
            series=1 if f["num_draft_tokens"] == 0 else 2,
        )
        for f in sorted(content["figures"], key=lambda f: f["set"])
    ]
    speedups = [
        svg.Range(
            label=f"{_draft(c)}, {c['set']}",
            low=c["speedup_low"],
            median=c["speedup"],
            high=c["speedup_high"],
            ceiling=c["ceiling"]["speedup"] if c["ceiling"] else None,
            series=2,
        )
        for c in comparisons
    ]
    blocks: list[Block] = [
        Chart(
            svg=svg.range_chart(speeds, title="Tokens per second", x_label="tokens/s, decode only"),
            caption="Tokens per second: the median, and the range over repeats",
        ),
        Chart(
            svg=svg.range_chart(speedups, title="Speedup beside its ceiling", x_label="times plain decoding"),
            caption="Speedup with its 95 % interval over prompts; the upright mark is the ceiling of the same run",
        ),
        Table(head=_HEAD, rows=[_row(c) for c in comparisons], caption="Speedup cannot exceed the accept length"),
        Paragraph(text=_identity(content)),
        *[Paragraph(text=c["verdict"]) for c in comparisons],
        *[_passage(p) for p in content["passages"]],
        *[Paragraph(text=f"Note: {note}") for note in content["notes"]],
    ]
    lead = "Plain and speculative decoding: the same code path, the same prompts, interleaved in one run."
    return Section(id=f"bench{number}", title=f"Speed: {path}", lead=lead, blocks=blocks)


def _batches(number: int, path: str, content: Mapping[str, Any]) -> Section:
    arms = [(figures, arm) for figures in content["batches"] for arm in figures["arms"]]
    speedups = [
        svg.Range(
            label=f"{_draft(a)}, {f['batch']} at a time",
            low=a["speedup_low"],
            median=a["speedup"],
            high=a["speedup_high"],
            ceiling=a["speedup_limit"],
            series=2,
        )
        for f, a in arms
        if a["num_draft_tokens"]
    ]
    blocks: list[Block] = [
        Chart(
            svg=svg.range_chart(speedups, title="Speedup in batches", x_label="times plain decoding"),
            caption="Speedup with its range over repeats; the upright mark is what no speedup can exceed",
        ),
        Table(
            head=_BATCH_HEAD,
            rows=[_batch_row(f, a) for f, a in arms],
            caption="New tokens of all sequences over the whole time, prompts included",
        ),
        Paragraph(text=_identity(content)),
        *[Paragraph(text=f"Note: {note}") for note in content["notes"]],
    ]
    lead = "Plain and speculative decoding of many sequences at a time: the same prompts, in turns in one run."
    return Section(id=f"bench{number}", title=f"Speed in batches: {path}", lead=lead, blocks=blocks)


_BATCH_HEAD = ["at a time", "draft", "tokens/s", "range", "speedup", "accept length", "equal texts"]


def _batch_row(figures: Mapping[str, Any], arm: Mapping[str, Any]) -> list[str | int | float]:
    speed = arm["tokens_per_s"]
    return [
        figures["batch"],
        _draft(arm) if arm["num_draft_tokens"] else "plain",
        f"{speed['median']:.1f}",
        f"{speed['minimum']:.1f} … {speed['maximum']:.1f}",
        f"{arm['speedup']:.2f}",
        f"{arm['accept_length']:.2f}",
        f"{arm['equal_texts']} of {figures['num_requests']}",
    ]


_HEAD = ["text", "draft", "speedup", "95 % interval", "ceiling", "accept length", "rounds", "verify / draft step, ms"]


def _row(c: Mapping[str, Any]) -> list[str | int | float]:
    ceiling = c["ceiling"]
    return [
        c["set"],
        _draft(c),
        f"{c['speedup']:.2f}",
        f"{c['speedup_low']:.2f} … {c['speedup_high']:.2f}",
        f"{ceiling['speedup']:.2f}" if ceiling else "–",
        f"{c['accept_length']:.2f}",
        c["rounds"],
        f"{ceiling['verify_ms']:.1f} / {ceiling['draft_step_ms']:.1f}" if ceiling else "–",
    ]


def _draft(c: Mapping[str, Any]) -> str:
    """`K = 3`, `K = auto`, or `tree 3x3x7`."""
    kind, _, value = str(c.get("arm", "")).partition("=")
    return f"tree {value}" if kind == "tree" else f"K = {value or c['num_draft_tokens']}"


def _identity(content: Mapping[str, Any]) -> str:
    same, compared = content["num_identical"], content["num_compared"]
    words = f"{same} of {compared} speculative texts are the plain ones, token for token."
    if content["divergences"]:
        gaps = ", ".join(
            f"{d['id']} at token {d['at']} (logit gap {d['logit_gap']:.1e})" for d in content["divergences"]
        )
        words += f" The others part where both tokens almost tie for the target's best: {gaps}."
    return words


def _passage(passage: Mapping[str, Any]) -> Tokens:
    deepest = max((origin for _, origin in passage["pieces"]), default=0)
    tokens = [TokenSpan(text=text, css=_css(origin), title=_origin(origin)) for text, origin in passage["pieces"]]
    origins = [*range(1, deepest + 1), 0, -1]
    return Tokens(
        prompt=f"{passage['set']}: {passage['id']}",
        tokens=tokens,
        legend=[LegendKey(css=_css(origin), text=_origin(origin)) for origin in origins],
        caption=f"How each token came, K = {passage['num_draft_tokens']}",
    )


def _css(origin: int) -> str:
    if origin > 0:
        return f"d{min(origin, _DEEPEST_COLOUR)}"
    return "bonus" if origin == 0 else "prefill"


def _origin(origin: int) -> str:
    if origin > 0:
        return f"draft {origin}"
    return "bonus token of the target" if origin == 0 else "from the prompt's own pass"


def _tone(content: Mapping[str, Any]) -> str:
    drafting = [a for f in content.get("batches", ()) for a in f["arms"] if a["num_draft_tokens"]]
    if drafting and all(a["speedup_low"] > 1.0 for a in drafting):
        return "good"
    if drafting:
        return "bad" if all(a["speedup_high"] < 1.0 for a in drafting) else "plain"
    best = content["best_num_draft_tokens"]
    chosen = [c for c in content["comparisons"] if c["num_draft_tokens"] == best and c["set"] == "all"]
    chosen = [c for c in chosen if c.get("arm", "") == content.get("best_arm", "")]
    if chosen and chosen[0]["speedup_low"] > 1.0:
        return "good"
    return "bad" if chosen and chosen[0]["speedup_high"] < 1.0 else "plain"
