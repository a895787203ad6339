"""The stage of `eyas chat`: opens target, draft and tokenizer, and gives a session."""

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eyas.chat.chat_config import ChatConfig
from eyas.chat.prompt_reader import open_prompt_reader
from eyas.chat.session import ChatSession, ChatSettings
from eyas.decode.sampling import Sampling
from eyas.engine.engine import DraftMissing
from eyas.engine.open_engine import open_engine
from eyas.models.placement import place
from eyas.talk import Talk

_SAMPLED_DEPTH = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedChat:
    """A session, and what it runs on.

    Attributes:
        about: `settings` of `eyas.chat/1`.
    """

    session: ChatSession
    about: dict[str, Any]


def open_chat(
    target_folder: Path, draft_path: Path | None, config: ChatConfig, *, cache: Path, talk: Talk
) -> OpenedChat:
    """Load a target and, if asked for, a draft, and begin a conversation.

    Args:
        target_folder: Hugging Face folder.
        draft_path: folder or file; None for plain decoding.
        config: options.
        cache: eyas' cache folder, for compiled kernels.
        talk: notes of what is left out, drawn at random or guessed.

    Raises:
        DraftMissing: drafts were asked for without a draft.
        SamplingInvalid: sampling options are out of range.
        TemplateMissing, TokenizerUnloadable: see `open_prompt_reader`.
        What reading the draft and the target raises (docs/errors.md).
    """
    depth = _depth(draft_path, config, talk)
    sampling = _sampling(config, talk)
    placement = place(config.dtype, config.device)
    reader = open_prompt_reader(target_folder, is_raw=config.raw)
    if not reader.end_ids:
        talk.note("the target's files name no end token: only --max-new-tokens and --stop end an answer")
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    opened = open_engine(
        target_folder,
        None if depth == 0 else draft_path,
        placement,
        cache=cache,
        num_threads=torch.get_num_threads(),
        talk=talk,
        rounds=config.rounds,
        quantize=config.quantize,
    )
    if depth is None and not sampling.is_greedy and opened.engine.fast is not None:
        depth = _SAMPLED_DEPTH
        talk.note(f"-k auto is {depth} here: captured rounds have a fixed depth when sampling")
    settings = ChatSettings(
        depth=depth,
        sampling=sampling,
        max_new_tokens=config.max_new_tokens,
        stops=config.stop,
        system=config.system,
    )
    about = {
        "num_draft_tokens": "auto" if depth is None else depth,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "seed": None if sampling.is_greedy else sampling.seed,
        "max_new_tokens": config.max_new_tokens,
        "stop": list(config.stop),
        "system": config.system,
        "raw": config.raw,
        "dtype": str(placement.dtype).removeprefix("torch."),
        "device": str(placement.device),
        "quantize": config.quantize,
        "threads": opened.num_threads,
        "target_path": opened.target_path,
        "draft_path": opened.draft_path,
    }
    return OpenedChat(session=ChatSession(opened.engine, reader, settings, talk), about=about)


def _depth(draft_path: Path | None, config: ChatConfig, talk: Talk) -> int | None:
    """K; None if it adapts; 0 without a draft."""
    if draft_path is not None:
        if config.depth == 0:
            talk.note("-k 0: the draft is not loaded")
        return config.depth
    if config.depth:
        raise DraftMissing(
            f"{config.depth} drafts per verify pass, but no draft",
            f"-k {config.depth}",
            "speculation needs a draft",
            "give one with --draft, or leave out -k",
        )
    return 0


def _sampling(config: ChatConfig, talk: Talk) -> Sampling:
    """The sampling asked for; a seed is drawn and printed if one is needed and not given."""
    wanted = {"top_p": config.top_p, "top_k": config.top_k, "min_p": config.min_p}
    seed = config.seed
    if config.temperature == 0:
        idle = [f"--{name.replace('_', '-')}" for name, value in wanted.items() if value != getattr(Sampling(), name)]
        idle += ["--seed"] if seed is not None else []
        if idle:
            talk.note(f"{', '.join(idle)}: no effect at temperature 0, which takes the most likely token")
    elif seed is None:
        seed = secrets.randbelow(2**31)
        talk.note(f"sampling with --seed {seed}")
    return Sampling(
        temperature=config.temperature, top_p=config.top_p, top_k=config.top_k, min_p=config.min_p, seed=seed or 0
    )
