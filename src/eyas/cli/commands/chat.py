"""`eyas chat`: reads the prompt or the keyboard, shows the answers."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from eyas import shipped
from eyas.chat.chat_config import ChatConfig, ChatConfigInvalid, ChatPromptInvalid, require_prompt_text
from eyas.cli.chat_loop import ChatScreen, talk_on
from eyas.cli.output import JsonFlag, emit
from eyas.cli.target_option import TargetName, cache_folder, target_folder
from eyas.cli.terminal import Terminal
from eyas.contract.files.read_checkpoint import require_checkpoint
from eyas.talk import Talk, say_loading

_DEFAULT = ChatConfig()
_NO_DRAFT = "none"
_MOST_BYTES = 64 << 20  # of standard input: more than any context


def chat(
    *,
    target: TargetName,
    draft: str | None = None,
    prompt: Annotated[list[str] | None, Parameter(name="--prompt", negative="")] = None,
    config: Annotated[ChatConfig, Parameter(name="*")] = _DEFAULT,
    json: JsonFlag = False,
) -> int:
    """Talk to a target through eyas' own engine, with or without a draft; text streams as it is generated.

    Without --prompt, on a terminal: a conversation. Ctrl-C ends an answer; Ctrl-D or /exit ends the session; /help
    lists the rest. Without --prompt, when standard input is not a terminal: all of standard input is one prompt.
    Answers go to stdout; the speed and accept length of each go to stderr.

    Parameters
    ----------
    draft
        Folder (or weight file) of the draft, in any format that eyas reads; none: plain decoding. Default: the draft
        that ships with eyas for --target smollm2-135m, otherwise none.
    prompt
        Answer this and exit. Give it several times for the turns of one conversation, in order.
    """
    prompts = _prompts(prompt, json=json)
    talk = Terminal()
    draft_path = _draft_path(draft, target, talk)
    if draft_path is not None and config.depth != 0:
        require_checkpoint(draft_path)
    folder = target_folder(target, talk)
    say_loading(talk)
    from eyas.chat.open_chat import open_chat

    opened = open_chat(folder, draft_path, config, cache=cache_folder(), talk=talk)
    screen = ChatScreen(talk, shows_drafts=config.show_drafts, to_stderr=json)
    if prompts is None:
        screen.welcome(target, opened.about)
        talk_on(opened.session, screen, talk)
        return 0
    answers = []
    for number, text in enumerate(prompts):
        if len(prompts) > 1:
            talk.line(f"{'' if number == 0 else chr(10)}> {text}")
        try:
            answer = opened.session.answer(text, screen.show)
        except KeyboardInterrupt:
            screen.newline()
            raise
        screen.end(answer)
        answers.append(answer.as_document())
    return emit(_document(target, draft_path, opened.about, answers), "", json=json)


def _prompts(given: Sequence[str] | None, *, json: bool) -> list[str] | None:
    """Prompts to answer; None for a conversation at the keyboard."""
    if given is not None:
        for text in given:
            require_prompt_text(text, "--prompt")
        return list(given)
    if sys.stdin is not None and sys.stdin.isatty():
        if json:
            raise ChatConfigInvalid(
                "--json without a prompt",
                "eyas chat --json",
                "`--json` needs a single prompt",
                "give --prompt TEXT, or pipe the prompt in",
            )
        return None
    return [_read_stdin()]


def _read_stdin() -> str:
    given = b"" if sys.stdin is None else sys.stdin.buffer.read(_MOST_BYTES + 1)
    if len(given) > _MOST_BYTES:
        raise ChatPromptInvalid(
            f"standard input is longer than {_MOST_BYTES >> 20} MiB",
            "standard input",
            "all of standard input is one prompt",
            "give a prompt that fits the target's context",
        )
    try:
        text = given.decode("utf-8").rstrip("\n")
    except UnicodeDecodeError as error:
        raise ChatPromptInvalid(
            "standard input is not valid UTF-8", f"byte {error.start}", error.reason, "give the prompt in UTF-8"
        ) from error
    require_prompt_text(text, "standard input")
    return text


def _draft_path(draft: str | None, target: str, talk: Talk) -> Path | None:
    """The draft's folder or file; None for plain decoding."""
    if draft == _NO_DRAFT:
        return None
    if draft is not None:
        return Path(draft)
    if target == shipped.TARGET:
        talk.note(f"no --draft: using the one that ships with eyas, {shipped.draft_folder()}")
        return shipped.draft_folder()
    talk.note("no --draft: plain decoding")
    return None


def _document(
    target: str, draft: Path | None, about: dict[str, Any], answers: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    is_used = about["draft_path"] is not None
    return {
        "schema": "eyas.chat/1",
        "target": target,
        "draft": str(draft) if is_used else None,
        "settings": about,
        "answers": list(answers),
    }
