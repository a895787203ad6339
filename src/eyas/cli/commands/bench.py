"""`eyas bench`: its options, and the record as tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from eyas import shipped
from eyas.bench.batches import impossible_in_batches
from eyas.bench.bench_config import BenchConfig, BenchConfigInvalid
from eyas.bench.compare import impossible, is_told, outcome, share_of_ceiling
from eyas.bench.processor_wait import is_busy
from eyas.bench.served.config import ServedBenchConfig, StartOptions
from eyas.cli.output import JsonFlag, emit, files_of_checkpoint, require_outputs, save_document
from eyas.cli.target_option import TargetName, cache_folder, target_folder
from eyas.cli.terminal import Terminal
from eyas.contract.engines.registry import EngineName
from eyas.contract.files.read_checkpoint import require_checkpoint
from eyas.records.bench_record import arm_words
from eyas.records.eval_rows import files_of
from eyas.talk import say_loading

_DEFAULT = BenchConfig()
_SERVED, _START = ServedBenchConfig(), StartOptions()


def bench(
    url: str | None = None,
    *,
    baseline: str | None = None,
    target: TargetName | None = None,
    draft: Path | None = None,
    engine: EngineName | Literal["eyas"] = "eyas",
    data: Annotated[list[Path] | None, Parameter(name="--data", consume_multiple=True, negative="")] = None,
    config: Annotated[BenchConfig, Parameter(name="*")] = _DEFAULT,
    served: Annotated[ServedBenchConfig, Parameter(name="*")] = _SERVED,
    start: Annotated[StartOptions, Parameter(name="*")] = _START,
    out: Path | None = None,
    json: JsonFlag = False,
) -> int:
    """Speed of plain and speculative decoding on the same prompts: of a server, or of eyas' own engine.

    With a URL: any OpenAI-compatible server, alone or beside --baseline, the same target served without the draft. Both
    get the same prompts and limits in turns; speeds, latencies, acceptance and texts are compared. The API key, if one
    is needed, is read from EYAS_API_KEY. Without: eyas' own engine, greedy, one stream or batches, all texts compared.

    Arms take turns on each prompt. Each speedup is shown with its interval, the accept length, and the ceiling that the
    measured times of a round's parts allow. It is an error if speculation changes a text, or if a speedup exceeds the
    accept length: only a slowed-down baseline can cause that.

    Parameters
    ----------
    url
        Of the server that speculates: http://host:port.
    baseline
        URL of a server with the same target and flags, without speculation.
    draft
        Folder (or weight file) of the draft, in any format that eyas reads.
    engine
        Which engine runs both arms: `eyas` is eyas' own, in this process; another is started with the draft, measured,
        and started again without speculation.
    data
        JSONL files as `eyas eval` reads them: `prompt_ids` with `response_ids` (the answers are not used), `messages`,
        or `turns` (of a server every turn is asked, and `category` is the set). Default: prompts that ship with eyas.
    out
        Also write the JSON object to this file, even if the run is not valid. Of a server: an interrupted run resumes
        from FILE.turns.jsonl.
    """
    from eyas.cli.served_bench import ServedRequest, bench_engine_arms, bench_url, require_no_url_options

    request = ServedRequest(data=data, config=config, served=served, out=out, json=json)
    if url is not None:
        if target is not None or draft is not None or engine != "eyas" or start != _START:
            raise _one_subject(
                "both were given", "leave out --target, --draft and --engine with its options, or the URL"
            )
        return bench_url(url, baseline, request)
    if target is None or draft is None:
        raise _one_subject(
            "neither a URL nor both --target and --draft were given", "eyas bench http://127.0.0.1:30000"
        )
    if engine != "eyas":
        if baseline is not None:
            raise _one_subject("--engine starts its own baseline", "leave out --baseline, or give two URLs")
        require_checkpoint(draft)
        return bench_engine_arms(engine, target, draft, request, start)
    if start != _START:
        raise _one_subject(
            "options to start a server were given, and none is started", "give --engine, or leave them out"
        )
    require_no_url_options(served, baseline)
    rows = data or [shipped.eval_rows_path()]
    require_outputs([out], read=[*files_of_checkpoint(draft), *rows])
    require_checkpoint(draft)
    files_of(data or ())
    talk = Terminal()
    folder = target_folder(target, talk)
    require_outputs([out], read=[folder])
    say_loading(talk)
    from eyas.bench.bench_engine import bench_engine

    if data is None:
        talk.note(f"no --data: using the prompts that ship with eyas, {rows[0]}")
    record = bench_engine(folder, draft, rows, config, cache=cache_folder(), talk=talk)
    document = record.as_document()
    save_document(document, out)
    refusal = impossible(record.comparisons) or impossible_in_batches(record.batches)
    if refusal is not None and not is_busy(
        record.settings.get("processor_wait")
    ):  # the verdict tells of a busy machine
        talk.line(render(document))
        raise refusal
    return emit(document, render(document), json=json)


def _one_subject(why: str, do: str) -> BenchConfigInvalid:
    return BenchConfigInvalid("what to measure is not clear", "eyas bench", why, do)


def render(document: Mapping[str, Any]) -> str:
    """The record as tables and the verdict; for batches one table and the verdict."""
    if document["batches"]:
        return "\n".join([*_batches(document["batches"]), "", *_ending(document)])
    sets = list(dict.fromkeys(c["set"] for c in document["comparisons"]))
    sets = [name for name in sets if is_told(name, sets)]
    width = max(len("transformers"), *map(len, sets))
    lines = [
        f"{'set':<{width}}  {'arm':<12}  tok/s (min - max)          with prefill",
        *_speeds(document, sets, width),
        "",
    ]
    told = [c for c in document["comparisons"] if c["set"] in sets]
    wide = max(4, *(len(_depth(c)) for c in told))
    head = f"{'set':<{width}}  {'K':>{wide}}  speedup (95 %)        accept length  ceiling  of it"
    lines += [head, *_comparisons(told, width, wide), ""]
    lines += [_arm(c) for c in told if c["set"] == sets[-1]]  # the last set is all prompts
    lines += [f"depths of k=auto, {c['set']}: {_depths(c)}" for c in told if c["arm"] == "k=auto"]
    return "\n".join([*lines, *_ending(document)])


def _arm(comparison: Mapping[str, Any]) -> str:
    name = arm_words(comparison["arm"] or f"k={comparison['num_draft_tokens']}")
    text = f"{name}: {outcome(comparison['speedup_low'], comparison['speedup_high'])}"
    if (parts := comparison["ceiling"]) is None:
        return text
    return (
        f"{text}; parts: one row {parts['one_row_ms']:.1f} ms, verify {parts['verify_ms']:.1f} ms,"
        f" draft step {parts['draft_step_ms']:.2f} ms"
    )


def _ending(document: Mapping[str, Any]) -> list[str]:
    return [document["verdict"], *(f"note: {note}" for note in document["notes"])]


def _batches(batches: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [f"{'batch':>5}  {'arm':<6}  {'tok/s (min - max)':<27}  speedup (min - max)   accept length  equal texts"]
    for figures in batches:
        for arm in figures["arms"]:
            speed = arm["tokens_per_s"]
            speeds = f"{speed['median']:.1f} ({speed['minimum']:.1f} - {speed['maximum']:.1f})"
            speedup = f"{arm['speedup']:.2f} ({arm['speedup_low']:.2f} - {arm['speedup_high']:.2f})"
            line = f"{figures['batch']:>5}  {arm['arm']:<6}  {speeds:<27}  {speedup:<20}  {arm['accept_length']:>13.3f}"
            lines.append(f"{line}  {arm['equal_texts']:>4} of {figures['num_requests']}")
    return lines


def _speeds(document: Mapping[str, Any], sets: Sequence[str], width: int) -> list[str]:
    lines = []
    for f in (f for f in document["figures"] if f["set"] in sets):
        decode, whole = f["tokens_per_s"], f["tokens_per_s_with_prefill"]
        spread = f"{decode['median']:.1f} ({decode['minimum']:.1f} - {decode['maximum']:.1f})"
        lines.append(f"{f['set']:<{width}}  {f['arm']:<12}  {spread:<25}  {whole['median']:.1f}")
    return lines


def _comparisons(comparisons: Sequence[Mapping[str, Any]], width: int, wide: int) -> list[str]:
    lines = []
    for c in comparisons:
        interval = f"{c['speedup']:.2f} ({c['speedup_low']:.2f} - {c['speedup_high']:.2f})"
        ceiling = c["ceiling"]["speedup"] if c["ceiling"] else None
        held = f"{ceiling:>7.2f}  {share_of_ceiling(c['speedup'], ceiling):>5}" if ceiling else f"{'–':>7}  {'–':>5}"
        line = f"{c['set']:<{width}}  {_depth(c):>{wide}}  {interval:<20}  {c['accept_length']:>13.3f}  {held}"
        lines.append(line)
    return lines


def _depth(comparison: Mapping[str, Any]) -> str:
    """`3`, `auto`, or a tree's shape."""
    return str(comparison["arm"]).partition("=")[2] or str(comparison["num_draft_tokens"])


def _depths(comparison: Mapping[str, Any]) -> str:
    shares = (f"{k}: {n / comparison['rounds']:.0%}" for k, n in enumerate(comparison["depth_histogram"]))
    return f"{', '.join(shares)} of {comparison['rounds']} rounds"
