"""What the data stage needs of a target's folder: tokenizer, chat template and closing tokens; never weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas.contract.spec.target_spec import read_target
from eyas.data.text.chat_template import ChatTemplate, Tokenizer
from eyas.errors import EyasError
from eyas.models.chat_prompt import load_tokenizer, stop_ids_of
from eyas.records import fingerprint


class TemplateMissing(EyasError):
    """The target has no chat template."""

    code = "template-missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetText:
    """A target as a reader of text.

    Attributes:
        tokenizer_hash, template_hash: fingerprints as in `contract.target_spec.TargetSpec`.
        reader: fingerprint of tokenizer, template and its options: the same reader gives the same ids.
        closing: special tokens, and those at which generation stops.
        end_ids: at which the target's folder says that a text ends.
    """

    tokenizer: Tokenizer
    template: ChatTemplate
    tokenizer_hash: str
    template_hash: str
    reader: str
    closing: tuple[str, ...]
    end_ids: frozenset[int]


def load_target_text(folder: Path, template_options: Mapping[str, Any]) -> TargetText:
    """The tokenizer and chat template of a Hugging Face folder.

    Raises:
        TokenizerUnloadable: the folder has no tokenizer, or a broken one.
        TemplateMissing: the folder has no chat template.
        What `contract.target_spec.read_target` raises.
    """
    spec = read_target(folder)
    tokenizer = load_tokenizer(folder)
    if not tokenizer.chat_template:
        raise TemplateMissing(
            "the target has no chat template",
            str(folder),
            "without a chat template, conversations cannot be rendered for this target",
            "put chat_template.jinja beside its tokenizer.json",
        )
    end_ids = stop_ids_of(folder)
    stops = [tokenizer.convert_ids_to_tokens(i) for i in end_ids if 0 <= i < len(tokenizer)]
    # All tokens that are marked special: some close a turn only.
    special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    closing = (*tokenizer.all_special_tokens, *special, *stops)
    hashes = spec.tokenizer_hash or "unknown", spec.template_hash or "unknown"
    return TargetText(
        tokenizer=tokenizer,
        template=ChatTemplate(tokenizer, closing, template_options, stops),
        tokenizer_hash=hashes[0],
        template_hash=hashes[1],
        reader=fingerprint.of_json([*hashes, dict(template_options)]),
        closing=closing,
        end_ids=end_ids,
    )
