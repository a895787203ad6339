"""The target's own greedy answers to prompts that come without one. Plain decoding, many prompts at a time."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from eyas.engine.batches.complete_prompts import BatchSettings, complete_prompts
from eyas.engine.batches.generator import Request
from eyas.errors import EyasError
from eyas.models.chat_prompt import TemplateFailed, TokenizerUnloadable, load_tokenizer, prompt_ids, stop_ids_of
from eyas.models.placement import Placement
from eyas.models.target_folder import fingerprint_weights
from eyas.records.eval_rows import EvalPrompt, EvalRow
from eyas.talk import Talk


class TokenizerUnusable(EyasError):
    """The target's folder has no tokenizer with a chat template."""

    code = "tokenizer-unusable"


def answer_prompts(
    folder: Path, placement: Placement, prompts: Sequence[EvalPrompt], max_new_tokens: int, talk: Talk
) -> list[EvalRow | None]:
    """Rows with the target's greedy continuation of each prompt under its chat template; None where it is refused.

    The target is loaded for this alone and let go afterwards.

    Args:
        folder: of the target: weights, tokenizer, template and end-of-text ids.
        placement: dtype and device.
        prompts: what to answer, at least one.
        max_new_tokens: an answer ends here, or with an end-of-text id (kept as its last token).

    Raises:
        TokenizerUnusable: no tokenizer, or one without a chat template.
        TemplateFailed: the template refuses every prompt.
        BatchMemoryTooSmall: the longest of them does not fit.
    """
    tokenizer = _tokenizer(folder)
    stop_ids = stop_ids_of(folder)
    rendered = _rendered(tokenizer, prompts, talk)
    requests = [
        Request(id=str(number), prompt_ids=ids, max_new_tokens=max_new_tokens, stop_ids=stop_ids)
        for number, ids in rendered.items()
    ]
    with TemporaryDirectory(prefix="eyas-answers-") as aside:
        found = complete_prompts(
            folder,
            requests,
            Path(aside) / "answers.jsonl",
            placement=placement,
            decode=tokenizer.decode,
            target=fingerprint_weights(folder),
            settings=BatchSettings(),
            talk=talk,
        )
    rows: list[EvalRow | None] = []
    for number, prompt in enumerate(prompts):
        if number not in rendered:
            rows.append(None)
            continue
        response = found[str(number)].ids
        if len(response) < 2:
            talk.note(f"row {prompt.id}: the target's answer is a single token; it has no round")
        rows.append(EvalRow(id=prompt.id, set=prompt.set, prompt_ids=rendered[number], response_ids=response))
    return rows


def _rendered(tokenizer: Any, prompts: Sequence[EvalPrompt], talk: Talk) -> dict[int, tuple[int, ...]]:
    """Token ids by the prompt's number; a prompt that the template refuses is left out and named."""
    rendered, refused = dict[int, tuple[int, ...]](), list[TemplateFailed]()
    for number, prompt in enumerate(prompts):
        try:
            rendered[number] = prompt_ids(tokenizer, prompt.messages, prompt.tools, f"row {prompt.id}")
        except TemplateFailed as error:
            refused.append(error)
    if refused and not rendered:
        raise refused[0]
    if refused:
        named = ", ".join(f"{error.where}: {error.why[:100]}" for error in refused[:3])
        talk.note(f"{len(refused)} of {len(prompts)} prompts are left out, the chat template refuses them: {named}")
    return rendered


def _tokenizer(folder: Path) -> Any:
    try:
        tokenizer = load_tokenizer(folder)
    except TokenizerUnloadable as error:
        raise _unusable(folder, error.why) from error
    if not tokenizer.chat_template:
        raise _unusable(folder, "its tokenizer has no chat template")
    return tokenizer


def _unusable(folder: Path, why: str) -> TokenizerUnusable:
    return TokenizerUnusable(
        "the target cannot answer prompts: they cannot be tokenised",
        str(folder),
        why,
        "add the tokenizer files, or evaluate on recorded rows (`prompt_ids` and `response_ids`)",
    )
