"""What the data stage needs of a target's folder: its tokenizer, chat template and closing tokens. No weights."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas.contract.target_spec import read_target
from eyas.data.chat_template import ChatTemplate, Tokenizer
from eyas.errors import EyasError


class TemplateMissing(EyasError):
    """The target has no chat template."""

    code = "template-missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetText:
    """A target as a reader of text.

    Attributes:
        tokenizer_hash, template_hash: fingerprints as in `contract.target_spec.TargetSpec`.
    """

    tokenizer: Tokenizer
    template: ChatTemplate
    tokenizer_hash: str
    template_hash: str


def load_target_text(folder: Path, template_options: Mapping[str, Any]) -> TargetText:
    """The tokenizer and chat template of a Hugging Face folder.

    Raises:
        TemplateMissing: the folder has none.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    if not tokenizer.chat_template:
        raise TemplateMissing(
            "the target has no chat template",
            str(folder),
            "without it nobody knows how a conversation becomes the text that the target reads",
            "put chat_template.jinja beside its tokenizer.json",
        )
    spec = read_target(folder)
    closing = [*tokenizer.all_special_tokens, *_end_tokens(folder, tokenizer)]
    return TargetText(
        tokenizer=tokenizer,
        template=ChatTemplate(tokenizer, closing, template_options),
        tokenizer_hash=spec.tokenizer_hash or "unknown",
        template_hash=spec.template_hash or "unknown",
    )


def _end_tokens(folder: Path, tokenizer: Any) -> list[str]:
    """The tokens at which generation stops, and all others that are marked special (some close a turn only)."""
    special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    path = folder / "generation_config.json"
    ids = json.loads(path.read_text()).get("eos_token_id") if path.exists() else None
    listed = ids if isinstance(ids, list) else [] if ids is None else [ids]
    return [*special, *(tokenizer.convert_ids_to_tokens(i) for i in listed)]
