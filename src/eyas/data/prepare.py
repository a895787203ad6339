"""`eyas prepare`: conversations to a folder of tokenised rows with an exact assistant-only loss mask."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eyas.contract.spec.target_spec import TargetSpec, read_target
from eyas.data.prepare_config import ConfigInvalid, PrepareConfig, WritingConfig
from eyas.data.rows.exclusion import Exclusion
from eyas.data.rows.mixture import DataFile, data_files
from eyas.data.rows.row_maker import RowMaker
from eyas.data.rows.row_store import ROW_COUNTS, RowArrays, Rows, damaged
from eyas.data.rows.selection import Selected, collect, select
from eyas.data.rows.variety import lengths, missing_kinds, sample
from eyas.data.text.server_tokenizer import ServerTokenizer
from eyas.data.text.target_text import TargetText, load_target_text
from eyas.data.text.tokenise import TokenRow, decode_many
from eyas.errors import EyasError
from eyas.records import fingerprint
from eyas.records.atomic import OutputExists, atomic_folder, require_place, require_replaceable
from eyas.records.changes import what_changed
from eyas.records.conversation import place_of
from eyas.records.data_files import list_files
from eyas.records.eval_rows import read_eval_rows, write_eval_rows
from eyas.records.rows import (
    HELD_OUT,
    MANIFEST,
    RULES,
    RowsManifest,
    Source,
    read_manifest,
    write_manifest,
)
from eyas.talk import Talk, counted, say_loading

if TYPE_CHECKING:
    from eyas.data.writing.written_data import WriterFactory


class MaskUseless(EyasError):
    """No token is supervised, or every token is."""

    code = "mask-useless"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The outcome.

    Attributes:
        example: the first row's pieces in order, (text, is it supervised), for a person to look at; None when the
            rows were there already.
        was_there: the folder held these very rows before.
        first: reason for which a record was left out or cut, or kind of part lost -> place of the first one.
    """

    folder: Path
    manifest: RowsManifest
    example: tuple[tuple[str, bool], ...] | None
    was_there: bool
    first: Mapping[str, str] = field(default_factory=dict)


def prepare(
    target: Path,
    data: Sequence[str | Path],
    out: Path,
    config: PrepareConfig,
    talk: Talk,
    *,
    writing: WritingConfig | None = None,
    writer: "WriterFactory | None" = None,
    exclude: Sequence[Path] = (),
    dry_run: bool = False,
    replace: bool = False,
    today: date | None = None,
    api_key: str | None = None,
) -> Prepared:
    """Tokenise `data` for `target` into the folder `out`, written aside and renamed.

    Args:
        data: files, or folders of files; `:WEIGHT` after one takes its rows more or less often than once.
        writing: what the target writes first: conversations of its own beside `data`, or new answers in it.
        writer: what answers requests then; our batch engine by default.
        exclude: files of prompts that must not be learned (benchmarks); see `Exclusion`.
        dry_run: do everything but write.
        replace: swap out a folder that holds other rows.
        today: for templates that write it; by default the clock's.
        api_key: of the servers in `writing.url`.

    The target's config and tokenizer are enough, unless it writes here: then its weights are needed. Servers that
    write need none, and no tokenizer where they have one.

    Raises:
        DataMissing, DataMalformed: a file is absent, or a line is not a conversation.
        TemplateUnstable, TemplateRewritesAnswer, TemplateFailed, TokensNotText: every record was refused so.
        TemplateEndless: the chat template does not come to an end.
        MaskUseless: there is no row, no token is supervised, or every token is.
        OutputExists: `out` holds something else.
        ConfigInvalid: there is nothing to prepare, or a dry run would have to write.
        What `written_data.write_data` and `open_servers` raise.
    """
    writing, today = writing or WritingConfig(), today or date.today()
    _require_doable(data, writing, dry_run)
    files, exclude = data_files(data, talk), list_files(exclude, all_splits=True, flag="--exclude")
    reading = _reading(read_target(target), config)
    if not dry_run:
        require_free(out, reading, replace=replace)
    say_loading(talk)
    servers = None
    if writing.url:
        from eyas.data.writing.open_servers import open_servers

        servers = open_servers(writing, api_key, talk, max_length=config.max_length)
    text = load_target_text(target, json.loads(config.template_options), servers, talk)
    if servers is not None and not writing.writes and not isinstance(text.tokenizer, ServerTokenizer):
        talk.note("--url is not used: the target's folder has its tokenizer, and nothing is to be written")
    exclude_prints = [fingerprint.of_file(path) for path in exclude]
    excluded = Exclusion.read(exclude, text.tokenizer)
    if writing.writes:
        from eyas.data.writing.written_data import WritingJob, write_data  # brings torch

        job = WritingJob(
            target=target,
            servers=servers,
            text=text,
            config=writing,
            max_length=config.max_length,
            files=files if writing.regenerate else [],
            excluded=excluded,
            exclude_prints=exclude_prints,
            today=today,
        )
        is_all = writing.regenerate or not files
        written = write_data(job, out, talk, replace=replace, writer=writer, is_all=is_all)
        files = written if writing.regenerate else [*files, *written]
    prints = [fingerprint.of_file(file.path) for file in files]
    whole = _fingerprint(reading, files, prints, exclude_prints)
    if not dry_run and not replace and out.exists():
        there = rows_there(out, whole, files, prints)
        return Prepared(folder=out, manifest=there, example=None, was_there=True)
    if text.template.fix_day(today):
        talk.note(f"the chat template writes the date into every prompt: rows made of text say {today}")
    maker = RowMaker(text, config, excluded)
    text.template.inserted.clear()  # of the target's own writing
    collected = collect(files, maker, talk)
    _say_inserted(text.template.inserted, talk)
    if maker.edited:
        talk.note(f"{len(maker.edited)} records were edited since the target wrote them: their text was tokenised")
    if collected.rows.num_rows and maker.refused is not None:
        talk.note(f"records that cannot be rendered are left out and counted; to keep them: {maker.refused.do}")
    selected = select(collected, files, config.held_out, maker, talk)
    _say_variety(selected.rows, text, talk)
    first = {reason: place_of(c, files[c.source].path) for reason, c in maker.first.items()}
    _require_useful(selected.rows, maker, first, files)
    manifest = _manifest(selected, text, config, whole, _sources(files, prints, maker, selected), maker)
    if not dry_run:
        with atomic_folder(out, replace=replace, marker=MANIFEST) as aside:
            selected.rows.write(aside)
            if selected.held_out:
                write_eval_rows(selected.held_out, aside / HELD_OUT)
            write_manifest(manifest, aside)
    example = tuple(pieces(selected.rows.row(0), text))
    return Prepared(folder=out, manifest=manifest, example=example, was_there=False, first=first)


def pieces(row: TokenRow, text: TargetText) -> Iterator[tuple[str, bool]]:
    """A row's text in runs of equal supervision, decoded from its token ids."""
    begin = 0
    for end in range(1, len(row.token_ids) + 1):
        if end == len(row.token_ids) or row.is_supervised[end] != row.is_supervised[begin]:
            yield text.tokenizer.decode(row.token_ids[begin:end], skip_special_tokens=False), row.is_supervised[begin]
            begin = end


def _say_inserted(inserted: Mapping[str, int], talk: Talk) -> None:
    for text, count in sorted(inserted.items(), key=lambda item: (-item[1], item[0]))[:3]:
        talk.note(
            f"the template puts {text!r} between the prompt and {counted(count, 'answer')} without reasoning: the"
            " target has to write it there, so it is supervised (where --template-options put it into the prompt, it is"
            " not)"
        )


def _say_variety(rows: RowArrays, text: TargetText, talk: Talk) -> None:
    """How long prompts and answers are, and which kinds are missing; nothing of a few rows."""
    numbers = sample(rows.num_rows)
    if numbers is None:
        return
    seen = [rows.row(number) for number in numbers]
    talk.line(lengths(seen))
    missing = missing_kinds(seen, decode_many(text.tokenizer, [row.token_ids for row in seen]))
    if missing:
        talk.note(
            f"hardly any row (under 1 %) holds {', '.join(missing)}: on such text the draft will accept less. Add some"
            " if your server gets it; docs/data.md, 'Kinds of text'"
        )


def _require_doable(data: Sequence[str | Path], writing: WritingConfig, dry_run: bool) -> None:
    if not data and not writing.self_chat:
        what = "--regenerate needs --data, whose user turns are answered" if writing.regenerate else "no data is named"
        raise ConfigInvalid(
            "there is nothing to prepare", "--data", what, "give --data FILE, or --self-chat N to let the target write"
        )
    if dry_run and writing.writes:
        raise ConfigInvalid(
            "a dry run writes nothing, but the rows need text that the target has not written yet",
            "--dry-run",
            "nothing can be counted before the target has written the text",
            "try a small run: --self-chat 24 into another --out",
        )


def _fingerprint(
    reading: Mapping[str, Any], files: Sequence[DataFile], prints: Sequence[str], excluded: Sequence[str]
) -> str:
    weights = [file.weight for file in files]
    return fingerprint.of_json([*reading.values(), list(prints), weights, list(excluded)])


def _reading(target: TargetSpec, config: PrepareConfig) -> dict[str, Any]:
    """What decides the rows beside data and exclusions."""
    options = {**asdict(config), "template_options": json.loads(config.template_options)}
    hashes = {"tokenizer": target.tokenizer_hash or "unknown", "template": target.template_hash or "unknown"}
    return {"rules": RULES, **hashes, "options": options}


def _require_useful(rows: RowArrays, maker: RowMaker, first: Mapping[str, str], files: Sequence[DataFile]) -> None:
    if 0 < rows.num_supervised < rows.num_tokens:
        return
    dropped = maker.dropped
    if not rows.num_rows and maker.refused is not None and len(dropped) == 1:
        raise maker.refused
    places = {reason: f" (first: {place})" for reason, place in first.items()}
    left_out = ", ".join(f"{count} × {reason}{places.get(reason, '')}" for reason, count in dropped.items())
    if not rows.num_rows:
        raise MaskUseless(
            "no conversation of the data gives a row to learn from",
            ", ".join(str(file.path) for file in files),
            f"every record was left out: {left_out}" if left_out else "the files hold no records",
            "look at the data: conversations need user turns and non-empty assistant turns, within --max-length",
        )
    raise MaskUseless(
        f"{rows.num_supervised} of {rows.num_tokens} tokens are supervised",
        f"{rows.num_rows} rows; records left out: {left_out or 'none'}",
        "a draft learns only from tokens that the target wrote, and a mask over all tokens teaches it the prompts",
        "look at the data: conversations need user turns and non-empty assistant turns",
    )


def _sources(
    files: Sequence[DataFile], prints: Sequence[str], maker: RowMaker, selected: Selected
) -> tuple[Source, ...]:
    import numpy as np

    rows = np.bincount(selected.rows.files, minlength=len(files))
    return tuple(
        Source(
            name=file.path.name,
            fingerprint=prints[i],
            num_records=maker.num_records[i],
            weight=file.weight,
            num_rows=int(rows[i]),
        )
        for i, file in enumerate(files)
    )


def _manifest(
    selected: Selected,
    text: TargetText,
    config: PrepareConfig,
    whole: str,
    sources: tuple[Source, ...],
    maker: RowMaker,
) -> RowsManifest:
    options: dict[str, Any] = asdict(config)
    rows = selected.rows
    return RowsManifest(
        fingerprint=whole,
        tokenizer=text.tokenizer_hash,
        template=text.template_hash,
        template_options=json.loads(options.pop("template_options")),
        sources=sources,
        options=options,
        **{name: getattr(rows, name) for name in ROW_COUNTS},
        dropped=dict(maker.dropped),
        lost=dict(maker.lost),
        notes=selected.notes,
        num_held_out=len(selected.held_out),
        num_as_written=maker.num_as_written,
        rules=RULES,
    )


def require_free(out: Path, reading: Mapping[str, Any], *, replace: bool) -> None:
    """Raise `OutputExists` or `WriteFailed` where it is clear, before the target writes anything, that rows cannot be
    put there.

    Args:
        reading: rules, tokenizer, template and options, by name.
    """
    require_place(out, out.parent)
    if replace or not (out / MANIFEST).exists():
        require_replaceable(out, replace, MANIFEST)
        return
    there = read_manifest(out)
    options = {**there.options, "template_options": dict(there.template_options)}
    then = {"rules": there.rules, "tokenizer": there.tokenizer, "template": there.template, "options": options}
    if then != reading:
        raise _other_rows(out, what_changed(then, reading))


def rows_there(out: Path, whole: str, files: Sequence[DataFile], prints: Sequence[str]) -> RowsManifest:
    """The manifest of the rows that `out` already holds.

    Raises:
        OutputExists: their fingerprint is not `whole`, that of `files` with the fingerprints `prints`.
        RowsUnreadable: it is, but the files beside the manifest are not what it says.
    """
    there = read_manifest(out)
    if there.fingerprint == whole:
        Rows(out)
        _require_held_out(out, there.num_held_out)
        return there
    then = {"data": [[source.name, source.fingerprint, source.weight] for source in there.sources]}
    now = {"data": [[file.path.name, print_, file.weight] for file, print_ in zip(files, prints, strict=True)]}
    raise _other_rows(out, what_changed(then, now) if then != now else "the prompts of --exclude differ")


def _require_held_out(out: Path, stated: int) -> None:
    if not stated:
        return
    path = out / HELD_OUT
    try:
        found = len(read_eval_rows([path]))
    except EyasError as error:
        why = f"{error.what}: {error.why}"
    else:
        why = f"{MANIFEST} says {stated} rows held out; {HELD_OUT} has {found}"
        if found == stated:
            return
    raise damaged(path, why)


def _other_rows(out: Path, why: str) -> OutputExists:
    return OutputExists(f"{out} holds other rows", str(out), why, "choose another folder, or give --replace")
