"""`eyas prepare`: conversations to a folder of tokenised rows with an exact assistant-only loss mask."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from eyas.data.conversation import Conversation, why_unusable
from eyas.data.exclusion import Exclusion
from eyas.data.read_conversations import list_files, read_conversations
from eyas.data.row_store import RowWriter
from eyas.data.target_text import TargetText, load_target_text
from eyas.data.tokenise import TokenRow, tokenise
from eyas.errors import EyasError
from eyas.records import fingerprint
from eyas.records.atomic import OutputExists, atomic_folder
from eyas.records.rows import MANIFEST, RowsManifest, Source, read_manifest, write_manifest
from eyas.talk import Talk

# Raise when the rows made of the same input change.
_RULES = 1


class ConfigInvalid(EyasError):
    """Options that contradict each other or the laws of arithmetic; all problems at once."""

    code = "config-invalid"


class MaskUseless(EyasError):
    """No token is supervised, or every token is."""

    code = "mask-useless"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareConfig:
    """How conversations become rows."""

    max_length: int = 2048
    """Longest row in tokens, 16 or more."""
    too_long: Literal["drop", "cut"] = "drop"
    """What happens to a longer row: dropped and counted, or cut at max_length and counted."""
    turns: Literal["joint", "split"] = "joint"
    """One row per conversation with all answers supervised, or one row per answer (for templates that rewrite
    earlier turns)."""
    template_options: str = "{}"
    """JSON object of further variables for the chat template, such as '{"enable_thinking": false}'."""

    def __post_init__(self) -> None:
        problems = []
        if self.max_length < 16:
            problems.append(f"max_length = {self.max_length}, wanted 16 or more")
        try:
            is_object = isinstance(json.loads(self.template_options), dict)
        except (ValueError, RecursionError):
            is_object = False
        if not is_object:
            problems.append(f"template_options = {self.template_options!r} is no JSON object")
        if problems:
            raise ConfigInvalid(
                "options of prepare are out of range", "PrepareConfig", "; ".join(problems), "see `eyas prepare --help`"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The outcome.

    Attributes:
        example: the first row's pieces in order, (text, is it supervised), for a person to look at; None when the
            rows were there already.
        was_there: the folder held these very rows before.
    """

    folder: Path
    manifest: RowsManifest
    example: tuple[tuple[str, bool], ...] | None
    was_there: bool


def prepare(
    target: Path,
    data: Sequence[Path],
    out: Path,
    config: PrepareConfig,
    talk: Talk,
    *,
    exclude: Sequence[Path] = (),
    dry_run: bool = False,
    replace: bool = False,
) -> Prepared:
    """Tokenise `data` for `target` into the folder `out`, written aside and renamed.

    Args:
        data: files, or folders of files.
        exclude: files of prompts that must not be learned (benchmarks); see `Exclusion`.
        dry_run: do everything but write.
        replace: swap out a folder that holds other rows.

    Raises:
        DataMissing, DataMalformed: a file is absent, or a line is no conversation.
        TemplateUnstable, TemplateRewritesAnswer, TemplateFailed, TokensNotText: no exact mask for a record.
        MaskUseless: there is no row, no token is supervised, or every token is.
        OutputExists: `out` holds something else.
    """
    data, exclude = list_files(data), list_files(exclude)
    text = load_target_text(target, json.loads(config.template_options))
    prints = [fingerprint.of_file(path) for path in data]
    excluded = Exclusion.read(exclude, text.tokenizer)
    whole = _fingerprint(text, prints, config, [fingerprint.of_file(path) for path in exclude])
    if out.exists() and not replace and not dry_run:
        return _already(out, whole)
    writer, dropped, counts = RowWriter(), Counter[str](), Counter[int]()
    example: tuple[tuple[str, bool], ...] | None = None
    seen: set[int] = set()
    with talk.progress("prepare", None, "records") as bar:
        for conversation in read_conversations(data):
            counts[conversation.source] += 1
            bar.advance()
            if excluded.holds(conversation):
                dropped[excluded.reason] += 1
                continue
            for row in _rows(conversation, text, config, dropped, seen):
                writer.add(row, conversation.source, conversation.line)
                example = example or tuple(pieces(row, text))
    _require_useful(writer, dropped, data)
    sources = tuple(Source(name=path.name, fingerprint=prints[i], num_records=counts[i]) for i, path in enumerate(data))
    manifest = _manifest(writer, text, config, whole, sources, dropped)
    if not dry_run:
        with atomic_folder(out, replace=replace, marker=MANIFEST) as aside:
            writer.write(aside)
            write_manifest(manifest, aside)
    return Prepared(folder=out, manifest=manifest, example=example, was_there=False)


def pieces(row: TokenRow, text: TargetText) -> Iterator[tuple[str, bool]]:
    """A row's text in runs of equal supervision, decoded from its token ids."""
    begin = 0
    for end in range(1, len(row.token_ids) + 1):
        if end == len(row.token_ids) or row.is_supervised[end] != row.is_supervised[begin]:
            yield text.tokenizer.decode(row.token_ids[begin:end], skip_special_tokens=False), row.is_supervised[begin]
            begin = end


def _rows(
    conversation: Conversation, text: TargetText, config: PrepareConfig, dropped: Counter[str], seen: set[int]
) -> Iterator[TokenRow]:
    """The rows of one record; what is left out is counted in `dropped`."""
    reason = why_unusable(conversation)
    if reason:
        dropped[reason] += 1
        return
    if config.turns == "split":
        parts = text.template.segments_by_turn(conversation)
    else:
        parts = [text.template.segments(conversation)]
    for segments in parts:
        row = tokenise(segments, text.tokenizer, f"data file {conversation.source + 1}, record {conversation.line}")
        if len(row.token_ids) > config.max_length:
            if config.too_long == "drop":
                dropped[f"longer than {config.max_length} tokens"] += 1
                continue
            row = row.cut(config.max_length)
            dropped[f"cut at {config.max_length} tokens (kept)"] += 1
        if row.num_supervised == 0:
            dropped["nothing supervised"] += 1
        elif hash(row) in seen:
            dropped["the same as an earlier row"] += 1
        else:
            seen.add(hash(row))
            yield row


def _fingerprint(text: TargetText, prints: Sequence[str], config: PrepareConfig, excluded: Sequence[str]) -> str:
    parts = [_RULES, text.tokenizer_hash, text.template_hash, list(prints), asdict(config), list(excluded)]
    return fingerprint.of_json(parts)


def _already(out: Path, whole: str) -> Prepared:
    """The rows that stand there, if they are the ones wanted."""
    if (out / MANIFEST).exists():
        manifest = read_manifest(out)
        if manifest.fingerprint == whole:
            return Prepared(folder=out, manifest=manifest, example=None, was_there=True)
        why = f"it holds rows {manifest.fingerprint}; this data, target and these options give {whole}"
    else:
        why = "it holds something else than rows"
    raise OutputExists(f"{out} is there already", str(out), why, "choose another folder, or give --replace")


def _require_useful(writer: RowWriter, dropped: Mapping[str, int], data: Sequence[Path]) -> None:
    if 0 < writer.num_supervised < writer.num_tokens:
        return
    left_out = ", ".join(f"{count} × {reason}" for reason, count in dropped.items())
    if not writer.num_rows:
        raise MaskUseless(
            "no conversation of the data gives a row to learn from",
            ", ".join(str(path) for path in data),
            f"every record was left out: {left_out}" if left_out else "the files hold no records",
            "look at the data: conversations need user turns and non-empty assistant turns, within --max-length",
        )
    raise MaskUseless(
        f"{writer.num_supervised} of {writer.num_tokens} tokens are supervised",
        f"{writer.num_rows} rows; records left out: {left_out or 'none'}",
        "a draft learns only from tokens that the target wrote, and a mask over all tokens teaches it the prompts",
        "look at the data: conversations need user turns and non-empty assistant turns",
    )


def _manifest(
    writer: RowWriter,
    text: TargetText,
    config: PrepareConfig,
    whole: str,
    sources: tuple[Source, ...],
    dropped: Mapping[str, int],
) -> RowsManifest:
    options: dict[str, Any] = asdict(config)
    return RowsManifest(
        fingerprint=whole,
        tokenizer=text.tokenizer_hash,
        template=text.template_hash,
        template_options=json.loads(options.pop("template_options")),
        sources=sources,
        options=options,
        num_rows=writer.num_rows,
        num_tokens=writer.num_tokens,
        num_supervised=writer.num_supervised,
        longest=writer.longest,
        dropped=dict(dropped),
    )
