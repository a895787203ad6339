"""The speed card: tokens per second with spread, speedup with accept length and ceiling, a passage token by token."""

from collections.abc import Mapping, Sequence
from typing import Any

from eyas.records.bench_record import MAX_SPEEDUP_PER_ACCEPT_LENGTH, arm_words
from eyas.report import svg
from eyas.report.documents import RunDocuments, draft_words
from eyas.report.page import Block, Chart, Headline, Section, Table, Text, Tokens, TokenSpan

BENCH = "eyas.bench"
_DEEPEST_COLOUR = 5  # page.css has d1 … d5; deeper drafts share the last
_MOST_PASSAGES, _MOST_GAPS = 6, 5
_HEAD = [
    "text",
    "draft",
    "speedup",
    "95 % interval",
    "outcome",
    "ceiling",
    "accept length",
    "rounds",
    "verify, draft step (ms)",
]
_BATCH_HEAD = ["at a time", "draft", "tokens/s", "range", "speedup", "accept length", "equal texts"]

Record = Mapping[str, Any]


def bench_headlines(runs: RunDocuments) -> list[Headline]:
    """One figure and one sentence per benchmark."""
    return [_headline(document.content) for document in runs.of(BENCH)]


def _headline(content: Record) -> Headline:
    draft = draft_words(content)
    best = _best(content)
    if best is None:
        return Headline(figure="–", sentence="no speedup was measured.", draft=draft)
    if _is_impossible(content):
        sentence = (
            "the measured speedup is more than speculation can give: the plain arm was slowed down. Run it again."
        )
        return Headline(figure="not valid", sentence=sentence, draft=draft, tone="bad")
    low, high, figure = best["speedup_low"], best["speedup_high"], f"{best['speedup']:.2f} ×"
    texts = (
        "same texts"
        if not content["divergences"]
        else f"{_equal(content)} texts the same, the others part at near-ties"
    )
    batch = f", {best['batch']} sequences at a time" if "batch" in best else ""
    if low > 1:
        return Headline(
            figure=f"{figure} faster", sentence=f"{texts}, {_drafts(best)}{batch}", draft=draft, tone="good"
        )
    if high < 1:
        sentence = f"the speed of plain decoding: speculation is slower here, {texts}, {_drafts(best)}{batch}"
        return Headline(figure=figure, sentence=sentence, draft=draft, tone="bad")
    sentence = (
        f"no difference from plain decoding can be shown ({low:.2f} to {high:.2f}), {texts}, {_drafts(best)}{batch}"
    )
    return Headline(figure=figure, sentence=sentence, draft=draft)


def _best(content: Record) -> Record | None:
    """The comparison that the headline is about: the fastest arm over all prompts, or in all batches."""
    if content.get("batches"):
        arms = [{**a, "batch": f["batch"]} for f in content["batches"] for a in f["arms"] if a["num_draft_tokens"]]
        return max(arms, key=lambda arm: float(arm["speedup"]), default=None)
    named = (content.get("best_arm", ""), content["best_num_draft_tokens"])
    over_all = [c for c in content["comparisons"] if c["set"] == "all"]
    return next((c for c in over_all if (c.get("arm", ""), c["num_draft_tokens"]) == named), None)


def _is_impossible(content: Record) -> bool:
    arms = [a for f in content.get("batches", ()) for a in f["arms"] if a["num_draft_tokens"]]
    limits = [(c["speedup_low"], c["accept_length"]) for c in content["comparisons"]]
    limits += [(a["speedup_low"], a["speedup_limit"]) for a in arms]
    return any(low > MAX_SPEEDUP_PER_ACCEPT_LENGTH * limit for low, limit in limits)


def bench_sections(runs: RunDocuments) -> list[Section]:
    """Nothing, or one card per benchmark found."""
    return [_section(f"bench{n}", d.path, d.content) for n, d in enumerate(runs.of(BENCH))]


def _section(name: str, path: str, content: Record) -> Section:
    is_batch = bool(content.get("batches"))
    blocks: list[Block] = _batch_blocks(content) if is_batch else _stream_blocks(content)
    blocks += [Text(text=_identity(content))]
    blocks += [_passage(p) for p in content["passages"][:_MOST_PASSAGES]]
    blocks += [Text(text=f"Note: {note}") for note in content["notes"]]
    kind = "many sequences at a time" if is_batch else "one stream"
    lead = f"Plain and speculative decoding of {kind}: the same code and the same prompts, in turns in one run."
    title = "Speed in batches" if is_batch else "Speed"
    return Section(id=name, title=title, source=path, lead=lead, blocks=blocks)


def _stream_blocks(content: Record) -> list[Block]:
    comparisons = _told(content["comparisons"])
    figures = sorted(_told(content["figures"]), key=lambda f: str(f["set"]))
    speeds = [_speed_range(f["arm"], f["set"], f["tokens_per_s"], f["num_draft_tokens"]) for f in figures]
    speedups = [_speedup_range(c, c["set"], c["ceiling"]["speedup"] if c["ceiling"] else None) for c in comparisons]
    return [
        Chart(
            svg=svg.range_chart(speedups, title="Speedup and its ceiling", x_label="times plain decoding"),
            caption="Speedup: the dot, with its 95 % interval over prompts. The vertical mark is the ceiling.",
        ),
        Chart(
            svg=svg.range_chart(speeds, title="Tokens per second", x_label="tokens/s, decode only"),
            caption="Tokens per second: the median, and the range over repeats",
        ),
        Table(head=_HEAD, rows=[_row(c) for c in comparisons], caption="No speedup can exceed the accept length"),
    ]


def _batch_blocks(content: Record) -> list[Block]:
    arms = [(figures, arm) for figures in content["batches"] for arm in figures["arms"]]
    speedups = [
        _speedup_range(a, f"{f['batch']} at a time", a["speedup_limit"]) for f, a in arms if a["num_draft_tokens"]
    ]
    chart = svg.range_chart(speedups, title="Speedup in batches", x_label="times plain decoding")
    return [
        Chart(svg=chart, caption="Speedup: the dot, with its range over repeats. The vertical mark is its limit."),
        Table(
            head=_BATCH_HEAD,
            rows=[_batch_row(f, a) for f, a in arms],
            caption="New tokens of all sequences over the whole time, prompts included",
        ),
    ]


def _speed_range(arm: str, group: str, speed: Record, num_draft_tokens: int) -> svg.Range:
    label, series = f"{arm_words(arm)}, {group}", 2 if num_draft_tokens else 1
    return svg.Range(label=label, low=speed["minimum"], median=speed["median"], high=speed["maximum"], series=series)


def _speedup_range(c: Record, group: str, ceiling: float | None) -> svg.Range:
    label, low, high = f"{_draft(c)}, {group}", c["speedup_low"], c["speedup_high"]
    return svg.Range(label=label, low=low, median=c["speedup"], high=high, ceiling=ceiling, series=2)


def _told(rows: Sequence[Record]) -> list[Record]:
    """The rows to show: not `all` if there is only one kind of text, which it would repeat."""
    kinds = {row["set"] for row in rows} - {"all"}
    return [row for row in rows if row["set"] != "all" or len(kinds) != 1]


def _row(c: Record) -> list[str | int | float]:
    ceiling = c["ceiling"]
    low, high = c["speedup_low"], c["speedup_high"]
    return [
        c["set"],
        _draft(c),
        f"{c['speedup']:.2f}",
        f"{low:.2f} … {high:.2f}",
        "faster" if low > 1 else "slower" if high < 1 else "no difference shown",
        f"{ceiling['speedup']:.2f}" if ceiling else "–",
        f"{c['accept_length']:.2f}",
        c["rounds"],
        f"{ceiling['verify_ms']:.1f}, {ceiling['draft_step_ms']:.1f}" if ceiling else "–",
    ]


def _batch_row(figures: Record, arm: Record) -> list[str | int | float]:
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


def _draft(c: Record) -> str:
    """`K = 3`, `K = auto`, or `tree 3x3x7`."""
    return arm_words(c.get("arm") or f"k={c['num_draft_tokens']}")


def _drafts(c: Record) -> str:
    """The same in a sentence."""
    num = c["num_draft_tokens"]
    name = _draft(c)
    words = {f"K = {num}": f"{num} draft{'s' * (num != 1)} a pass", "K = auto": f"up to {num} drafts a pass"}.get(name)
    return f"{name} ({words})" if words else name


def _equal(content: Record) -> str:
    return f"{content['num_identical']} of {content['num_compared']}"


def _identity(content: Record) -> str:
    words = f"{_equal(content)} speculative texts are equal to the plain ones, token for token."
    if gaps := content["divergences"]:
        shown = [f"{d['id']} at token {d['at']} (logit gap {d['logit_gap']:.1e})" for d in gaps[:_MOST_GAPS]]
        more = [f"and {len(gaps) - _MOST_GAPS} more"] if len(gaps) > _MOST_GAPS else []
        words += f" The others part where both tokens almost tie for the target's best: {', '.join([*shown, *more])}."
    return words


def _passage(passage: Record) -> Tokens:
    deepest = max((origin for _, origin in passage["pieces"]), default=0)
    tokens = [TokenSpan(text=text, css=_css(origin), title=_origin(origin)) for text, origin in passage["pieces"]]
    origins = [*range(1, min(deepest, 2 * _DEEPEST_COLOUR) + 1), 0, -1]
    return Tokens(
        prompt=f"{passage['set']}: {passage['id']}",
        tokens=tokens,
        legend=[(_css(origin), _origin(origin)) for origin in origins],
        caption=f"Where each token came from, K = {passage['num_draft_tokens']}",
    )


def _css(origin: int) -> str:
    if origin > 0:
        return f"d{min(origin, _DEEPEST_COLOUR)}"
    return "bonus" if origin == 0 else "prefill"


def _origin(origin: int) -> str:
    if origin > 0:
        return f"draft {origin}"
    return "bonus token of the target" if origin == 0 else "from the prompt's own pass"
