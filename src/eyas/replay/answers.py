"""The target's own greedy answers to prompts, for data that holds none. Plain decoding, one prompt at a time."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from eyas.errors import EyasError
from eyas.models.stop_ids import stop_ids_of
from eyas.models.target import Target
from eyas.records.eval_rows import EvalPrompt, EvalRow
from eyas.talk import Talk


class TokenizerUnusable(EyasError):
    """The target's folder has no tokenizer with a chat template."""

    code = "tokenizer-unusable"


def answer_prompts(
    target: Target, folder: Path, prompts: Sequence[EvalPrompt], max_new_tokens: int, talk: Talk
) -> list[EvalRow]:
    """Rows with the target's greedy continuation of each prompt under its chat template.

    Args:
        target: the model.
        folder: its folder, for tokenizer, template and end-of-text ids.
        prompts: what to answer.
        max_new_tokens: an answer ends here, or with an end-of-text id (kept as its last token).

    Raises:
        TokenizerUnusable: no tokenizer, or one without a chat template.
    """
    tokenizer = _tokenizer(folder)
    stop_ids = stop_ids_of(folder) or _nested_stop_ids(target)
    rows = []
    with talk.progress("target answers", len(prompts), "prompts") as bar:
        for prompt in prompts:
            ids = tokenizer.apply_chat_template(list(prompt.messages), add_generation_prompt=True, return_dict=False)
            response = greedy_continuation(target, list(ids), max_new_tokens, stop_ids)
            if len(response) < 2:
                talk.note(f"row {prompt.id}: the target's answer is a single token; it has no round")
            rows.append(EvalRow(id=prompt.id, set=prompt.set, prompt_ids=tuple(ids), response_ids=tuple(response)))
            bar.advance()
            bar.say(f"{sum(len(row.response_ids) for row in rows)} tokens")
    return rows


@torch.no_grad()
def greedy_continuation(
    target: Target, prompt_ids: list[int], max_new_tokens: int, stop_ids: frozenset[int]
) -> list[int]:
    """At most `max_new_tokens` ids, each the argmax of the target's logits; a stop id is the last."""
    cache, response = target.new_cache(), list[int]()
    ids = torch.tensor([prompt_ids], device=target.device)
    while len(response) < max_new_tokens and not (response and response[-1] in stop_ids):
        states = target.forward(ids, cache=cache)
        ids = target.logits(states.last[:, -1]).argmax(-1, keepdim=True)
        response.append(int(ids))
    return response


def _nested_stop_ids(target: Target) -> frozenset[int]:
    # A wrapper's config keeps them with its text model.
    stated = getattr(target.text_config, "eos_token_id", None)
    return frozenset([stated] if isinstance(stated, int) else stated or [])


def _tokenizer(folder: Path) -> Any:
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise _unusable(folder, str(error).splitlines()[0]) from error
    if not tokenizer.chat_template:
        raise _unusable(folder, "its tokenizer has no chat template")
    return tokenizer


def _unusable(folder: Path, why: str) -> TokenizerUnusable:
    return TokenizerUnusable(
        "the target cannot be asked: its prompts cannot be tokenised",
        str(folder),
        why,
        "add the tokenizer files, or evaluate on recorded rows (`prompt_ids` and `response_ids`)",
    )
