"""`eyas parity` from paths: the server identified, the prompts read, target or pack and draft loaded."""

from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor

from eyas import shipped
from eyas.client.address import ServerAddress, open_http
from eyas.client.server_api import GenerationOptions
from eyas.contract.engines.server_at import server_at
from eyas.contract.files.json_file import read_json_object
from eyas.models.chat_prompt import load_tokenizer, prompt_ids
from eyas.models.placement import place
from eyas.models.target import LiveStates, Target
from eyas.parity.config import ParityConfig, ParityConfigInvalid
from eyas.parity.run import Parity, run_parity
from eyas.records.eval_rows import EvalPrompt, EvalRow, read_eval_rows
from eyas.replay.evaluate import found_files, load_for, load_for_pack
from eyas.replay.probe_pack import PackStates, read_probe
from eyas.talk import Talk

_SILENCE_S = 600.0  # a long answer on a slow server


def parity_with_target(
    url: str,
    draft_path: Path,
    folder: Path,
    data: Sequence[Path] | None,
    config: ParityConfig,
    api_key: str | None,
    talk: Talk,
) -> Parity:
    """Parity with the target in this process.

    Args:
        data: files with prompts; None = the rows that ship with eyas.

    Raises:
        what `run_parity` and reading draft, target and rows raise (docs/errors.md).
    """
    placement, address = place(config.dtype, config.device), _address(url, api_key, talk)
    if data is None:
        talk.note(f"no --data: asking the prompts that ship with eyas, {shipped.eval_rows_path()}")
    prompts = _prompts(folder, read_eval_rows(found_files(data or [shipped.eval_rows_path()], talk), config.max_rows))
    target = Target.load(folder, placement)
    draft = load_for(draft_path, folder, target, placement, talk)
    with open_http(address, timeout_s=_SILENCE_S) as http:
        return run_parity(
            http,
            address,
            LiveStates(target),
            draft,
            prompts,
            _options(config),
            talk,
            server_dtype=_server_dtype(config, folder, talk),
            concurrency=config.concurrency,
            boundaries_known=range(target.num_layers + 1),
            num_layers=target.num_layers,
            target_logits=_logits_of(target) if config.drafts == "sampled" else None,
            target_embedding=target.parts.embedding,
        )


def _logits_of(target: Target) -> Callable[[Tensor], Tensor]:
    return lambda ids: target.logits(target.forward(ids, []).last[0])


def parity_on_probe(
    url: str, draft_path: Path, probe_path: Path, config: ParityConfig, api_key: str | None, talk: Talk
) -> Parity:
    """Parity on a probe pack's prompts: no target is needed, answers that leave its texts are left out.

    Raises:
        what `run_parity` and reading draft and pack raise (docs/errors.md).
    """
    if config.drafts == "sampled":
        raise ParityConfigInvalid(
            "--drafts sampled needs the target",
            str(probe_path),
            "a probe pack holds no head: the target's own probabilities are not known",
            "give --target T in place of --probe",
        )
    placement, pack, address = place(config.dtype, config.device), read_probe(probe_path), _address(url, api_key, talk)
    draft = load_for_pack(draft_path, pack, probe_path, placement, talk)
    dtype = pack.about.dtype if config.server_dtype == "auto" else config.server_dtype
    if config.server_dtype == "auto":
        talk.note(f"near-ties are judged in {dtype}, the pack's dtype (--server-dtype changes that)")
    with open_http(address, timeout_s=_SILENCE_S) as http:
        return run_parity(
            http,
            address,
            PackStates(pack, placement.device),
            draft,
            pack.rows[: config.max_rows],
            _options(config),
            talk,
            server_dtype=dtype,
            concurrency=config.concurrency,
            boundaries_known=sorted(pack.states),
            num_layers=pack.about.num_layers,
            recorded=True,
            target_embedding=pack.embedding(placement.dtype).to(placement.device),
        )


def _address(url: str, api_key: str | None, talk: Talk) -> ServerAddress:
    found = server_at(url, api_key)
    talk.line(f"{found.url} is {found.api.name} {found.version or 'of unknown version'}")
    return found


def _prompts(folder: Path, read: Sequence[EvalRow | EvalPrompt]) -> list[EvalRow]:
    """Rows whose prompts are token ids; of recorded answers nothing is used."""
    tokenizer = load_tokenizer(folder) if any(isinstance(row, EvalPrompt) for row in read) else None
    rows = []
    for row in read:
        if isinstance(row, EvalPrompt):
            ids = prompt_ids(tokenizer, row.messages, row.tools, f"row {row.id}")
            rows.append(EvalRow(id=row.id, set=row.set, prompt_ids=ids, response_ids=()))
        else:
            rows.append(row)
    return rows


def _options(config: ParityConfig) -> GenerationOptions:
    return GenerationOptions(
        max_new_tokens=config.max_new_tokens, temperature=config.temperature, depth=config.num_draft_tokens
    )


def _server_dtype(config: ParityConfig, folder: Path, talk: Talk) -> str:
    if config.server_dtype != "auto":
        return config.server_dtype
    stated = read_json_object(folder / "config.json")
    places = [part for part in (stated, stated.get("text_config")) if isinstance(part, dict)]
    named = next((s.get(k) for s in places for k in ("dtype", "torch_dtype") if s.get(k)), "bfloat16")
    dtype = named if named in ("bfloat16", "float16", "float32") else "bfloat16"
    talk.note(f"near-ties are judged in {dtype}, the target's own dtype (--server-dtype changes that)")
    return dtype
