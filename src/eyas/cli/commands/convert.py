"""`eyas convert`: parse, call, render."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from eyas.cli.output import JsonFlag, emit
from eyas.cli.terminal import Terminal
from eyas.contract.convert.conversion import ConversionPlan, Fix, PlannedTensor
from eyas.contract.convert.conversion_apply import Converted
from eyas.contract.spec.draft_spec import DraftReading
from eyas.contract.spec.target_spec import TargetSpec
from eyas.errors import EyasError

_SHOWN_BYTES = ("B", "kB", "MB", "GB", "TB")


class OutMissing(EyasError):
    """A conversion without a folder to write to."""

    code = "out-missing"


def convert(
    draft: Path,
    out: Path | None = None,
    *,
    to: str,
    target: str | None = None,
    rename: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    allow: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    fix: Annotated[tuple[Fix, ...], Parameter(negative="")] = (),
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    replace: Annotated[bool, Parameter(negative="")] = False,
    json: JsonFlag = False,
) -> int:
    """Translate a draft into another format: every tensor and every switch, or a refusal that names what is lost.

    Plans from headers, validates every shape, copies the data in slices, compares what it wrote with the source, and
    only then renames the folder into place. Beside the weights it writes eyas.json: every switch, where its value came
    from, fingerprints, and what was lost with --allow. Tokenizer files and model cards are not copied (and are named).

    Parameters
    ----------
    draft
        The draft's folder, its weight file with config.json beside it, a hub id (owner/name), or with --dry-run a
        header dump.
    out
        Folder to write. Not needed with --dry-run and for llama.cpp.
    to
        sglang (specforge), speculators, vllm, eagle, modelopt, angelslim, torchspec, trtllm; llama.cpp prints the
        command of its own converter.
    target
        A Hugging Face folder, a config.json, a hub id or smollm2-135m: for what the format wants from the target
        (its embedding, its depth for the aux layer ids). Of a hub id only config and tokenizer files are fetched; its
        embedding is copied if the weights are cached.
    rename
        OLD=NEW: take the tensor OLD for NEW, or OLD_PREFIX*=NEW_PREFIX* for all that begin so (quoted); may be given
        several times. The draft is then judged as if it had these names. What all names begin with and no draft has,
        such as module., is left out without being told.
    allow
        Convert in spite of the finding or loss with this code; may be given several times, and is recorded.
    fix
        d2t-absolute: d2t holds target ids, and is written as the offsets that every engine wants. Refused unless t2d
        proves it or, without a t2d, the values are impossible as offsets; recorded.
    dry_run
        Show the plan, tensor by tensor, and write nothing.
    replace
        Overwrite OUT if eyas wrote it or it is empty, and it does not contain the source.
    """
    from eyas.cli.target_option import draft_path
    from eyas.contract.dialects.llama_cpp import NAMES
    from eyas.contract.dialects.registry import dialect_named
    from eyas.contract.files.read_checkpoint import read_checkpoint
    from eyas.contract.reading.read_draft import PREFIX, read_draft
    from eyas.contract.spec.renames import parse_rename

    talk = Terminal()
    is_llama_cpp = to.lower() in NAMES
    dialect = None if is_llama_cpp else dialect_named(to)
    target_spec = _target(target, talk)
    draft = draft_path(draft, talk)
    reading = read_draft(read_checkpoint(draft), target_spec, [parse_rename(text) for text in rename])
    if dialect is None:
        given = {"--allow": allow, "--fix": fix, "--dry-run": dry_run, "--replace": replace}
        if idle := [name for name, value in given.items() if value]:
            talk.note(f"{', '.join(idle)}: no effect: eyas writes nothing for llama.cpp")
        return _llama_cpp(reading, target_spec, draft, out, json)
    from eyas.contract.convert.conversion_plan import plan_conversion

    plan = plan_conversion(reading, dialect, target_spec, allow, fix, is_dry=dry_run)
    for note in (*(f.what for f in reading.findings if f.code == PREFIX), *plan.notes):
        talk.note(note)
    for code in allow:
        if code not in plan.allowed:
            talk.note(f"--allow {code}: no finding has this code")
    if dry_run:
        text = _text(plan, [_line(t, _width(plan)) for t in plan.tensors])
        return emit(_document(plan, None), text + "\ndry run: nothing was written", json=json)
    if out is None:
        raise OutMissing("the output folder is missing", "eyas convert", "OUT was not given", "add OUT, or --dry-run")
    done = _write(plan, out, talk, replace)
    return emit(_document(plan, done), _text(plan, _summary(plan)) + f"\nwrote {out}", json=json)


def _target(name: str | None, talk: Terminal) -> TargetSpec | None:
    from eyas.contract.spec.target_spec import read_target

    if name is None:
        return None
    from eyas.cli.target_option import target_headers

    path = target_headers(name, talk)
    assert path is not None, "the hub was asked"
    found = read_target(path)
    is_hub_id = "/" in name and not Path(name).expanduser().exists()
    return replace_fields(found, name=name) if is_hub_id else found


def _write(plan: ConversionPlan, out: Path, talk: Terminal, replace: bool) -> Converted:
    from eyas.contract.convert.conversion_apply import apply_conversion, free_bytes_missing
    from eyas.records.atomic import OutputExists, WriteFailed

    missing = free_bytes_missing(plan, out)
    if missing:
        raise WriteFailed(
            f"no room for {out}",
            str(out),
            f"{_size(plan.num_bytes)} are needed, {_size(missing)} are missing; nothing was written",
            "free some space or choose another disk",
        )
    try:
        return apply_conversion(plan, out, talk, replace=replace)
    except OutputExists as error:
        if not replace:
            error.add_note(
                "`--replace` overwrites OUT if eyas wrote it or it is empty, and it does not contain the source"
            )
        raise


def _text(plan: ConversionPlan, tensors: Sequence[str]) -> str:
    reading, width = plan.reading, _width(plan)
    lines = [
        f"{reading.checkpoint.where}: {reading.dialect} ({'; '.join(reading.evidence)})",
        f"to {plan.dialect}: {len(plan.tensors)} tensors, {_size(plan.num_bytes)}",
    ]
    lines += tensors
    lines += [f"  {name:<{width}}  --  {why}" for name, why in plan.dropped.items()]
    lines += [f"allowed [{code}]: {what}" for code, what in plan.allowed.items()]
    if plan.left_out:
        lines.append(f"not copied: {', '.join(plan.left_out)}")
    return "\n".join(lines)


def _width(plan: ConversionPlan) -> int:
    return max((len(tensor.origin) for tensor in plan.tensors), default=0)


def _line(tensor: PlannedTensor, width: int) -> str:
    return f"  {tensor.origin:<{width}}  ->  {tensor.name}  {tensor.dtype} {list(tensor.shape)}"


def _summary(plan: ConversionPlan) -> list[str]:
    """One line per renamed prefix; tensors from other sources in full. `--dry-run` lists every tensor."""
    num_same, renames, others = 0, Counter[tuple[str, str]](), []
    for tensor in plan.tensors:
        before, after = tensor.origin.split("."), tensor.name.split(".")
        while before and after and before[-1] == after[-1]:
            del before[-1], after[-1]
        if not before and not after:
            num_same += 1
        elif len(before) < tensor.origin.count(".") + 1 and ":" not in tensor.origin:
            renames[".".join([*before, "*"]), ".".join([*after, "*"])] += 1
        else:
            others.append(_line(tensor, 0))
    lines = [f"  {old} -> {new}: {count}" for (old, new), count in renames.items()]
    return [*lines, *others, f"  name kept: {num_same} (--dry-run lists every tensor)"]


def _size(num_bytes: float) -> str:
    for unit in _SHOWN_BYTES:
        if num_bytes < 1000 or unit == _SHOWN_BYTES[-1]:
            break
        num_bytes /= 1000
    return f"{num_bytes:.3g} {unit}"


def _document(plan: ConversionPlan, done: Converted | None) -> dict[str, Any]:
    return {
        "schema": "eyas.convert/1",
        "from": plan.reading.dialect,
        "evidence": list(plan.reading.evidence),
        "to": plan.dialect,
        "out": str(done.out) if done else None,
        "num_bytes": plan.num_bytes,
        "fingerprint": done.fingerprint if done else None,
        "tensors": [
            {"name": t.name, "origin": t.origin, "dtype": t.dtype, "shape": list(t.shape)} for t in plan.tensors
        ],
        "dropped": dict(plan.dropped),
        "allowed": dict(plan.allowed),
        "copied_from_target": list(plan.copied_from_target),
        "left_out": list(plan.left_out),
        "notes": list(plan.notes),
        "config": dict(plan.config),
    }


def _llama_cpp(reading: DraftReading, target: TargetSpec | None, draft: Path, out: Path | None, json: bool) -> int:
    from eyas.contract.dialects.llama_cpp import llama_cpp_recipe

    recipe = llama_cpp_recipe(reading, target, str(draft), str(out or "draft.gguf"))
    text = "llama.cpp converts drafts itself:\n" + "\n".join(f"  {line}" for line in recipe.commands)
    text += "\nit needs:\n" + "\n".join(f"  - {line}" for line in recipe.needs)
    document = {"schema": "eyas.convert/1", "from": reading.dialect, "to": "llama.cpp", "out": None}
    return emit({**document, "commands": list(recipe.commands), "needs": list(recipe.needs)}, text, json=json)
