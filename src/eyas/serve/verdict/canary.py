"""Canary prompts: short, varied, answered in the target's own chat form where its template is known.

A canary is only as good as its text: looping text flatters a draft. `loops` says when an answer loops.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eyas.client.server_api import Prompt

QUESTIONS = (
    "Explain in a few sentences why the sky is blue.",
    "Write a Python function that returns the n-th Fibonacci number, then explain it.",
    "A train leaves at 9:40 and arrives at 13:05. How long does the journey take? Think step by step.",
    "Summarise the plot of Romeo and Juliet in one paragraph.",
    "List five practical tips for keeping a small vegetable garden healthy, each with a reason.",
    "Translate into French and explain the grammar: 'If I had known, I would have come earlier.'",
    "What are the main differences between TCP and UDP, and when would you use each?",
    "Write a short letter to a landlord about a broken heater.",
)
_WINDOW = 4  # tokens of a repeated piece
_LOOPING_SHARE = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryPrompts:
    """Prompts to send, and how they were made.

    Attributes:
        note: what a reader must know of them ("no chat template: plain text").
    """

    prompts: tuple[Prompt, ...]
    note: str = ""


def canary_prompts(target_folder: Path | None) -> CanaryPrompts:
    """The canary prompts in the target's chat form (rendered here, so that every engine gets the same text).

    Args:
        target_folder: a Hugging Face folder; None, or one without a usable template, gives plain text.
    """
    if target_folder is None:
        return CanaryPrompts(prompts=_plain(), note="the target's folder is not known: canaries are plain text")
    try:
        return CanaryPrompts(prompts=tuple(render_chat(target_folder, q) for q in QUESTIONS))
    except (OSError, ValueError, KeyError) as error:
        return CanaryPrompts(prompts=_plain(), note=f"no usable chat template ({error}): canaries are plain text")


def render_chat(folder: Path, question: str) -> str:
    """One user message through the target's own chat template, ready for the answer.

    Raises:
        OSError, ValueError, KeyError: no template there, or one that does not render.
    """
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    source = _template(folder, config)
    extensions = ["jinja2.ext.loopcontrols"]
    sandbox = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    sandbox.globals["raise_exception"] = _raise
    sandbox.globals["strftime_now"] = lambda _format: "01 Jan 2026"
    special = {n: _content(config.get(n)) for n in ("bos_token", "eos_token", "pad_token", "unk_token")}
    try:
        text = sandbox.from_string(source).render(
            messages=[{"role": "user", "content": question}], add_generation_prompt=True, **special
        )
    except TemplateError as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    # The engine's tokenizer would put a second begin-of-text token before the template's.
    return text.removeprefix(special["bos_token"]) if _adds_bos(folder, special["bos_token"]) else text


def loops(tokens: Sequence[object]) -> bool:
    """Whether a text goes round in circles: most of its later windows of four were there before.

    Args:
        tokens: token ids, or words where the server gives no ids.
    """
    windows = [tuple(tokens[i : i + _WINDOW]) for i in range(len(tokens) - _WINDOW + 1)]
    if len(windows) < 24:
        return False
    return 1 - len(set(windows)) / len(windows) > _LOOPING_SHARE


def _plain() -> tuple[Prompt, ...]:
    return tuple(f"Question: {q}\nAnswer:" for q in QUESTIONS)


def _template(folder: Path, config: dict[str, object]) -> str:
    file = folder / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    given = config["chat_template"]
    if isinstance(given, list):
        given = next((t["template"] for t in given if t.get("name") == "default"), None)
    if not isinstance(given, str):
        raise ValueError("chat_template is not a string")
    return given


def _adds_bos(folder: Path, bos: str) -> bool:
    file = folder / "tokenizer.json"
    if not bos or not file.exists():
        return False
    return bos in json.dumps(json.loads(file.read_text(encoding="utf-8")).get("post_processor"), ensure_ascii=False)


def _content(token: object) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")


def _raise(message: str) -> None:
    raise ValueError(message)
