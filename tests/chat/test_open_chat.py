"""From folders to a session, by the captured rounds too (here their eager twin, on the CPU)."""

from pathlib import Path
from typing import Any

import pytest

from eyas.chat.chat_config import ChatConfig
from eyas.chat.open_chat import open_chat
from eyas.chat.session import ChatSession
from eyas.contract.spec.target_spec import read_target
from eyas.models.save_draft import save_draft
from eyas.talk import Silent
from tiny_draft import tiny_draft
from writing_target import save_writing_target


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `target` and `draft`."""
    root = tmp_path_factory.mktemp("open-chat")
    spec = read_target(save_writing_target(root / "target"))
    size = {"vocab_size": spec.vocab_size, "draft_vocab_size": spec.vocab_size}
    module = tiny_draft(3, hidden_size=32, target_hidden_size=32, embedding="target", head="target", **size)
    save_draft(module, root / "draft", target_spec=spec)
    return root


def opened(made: Path, talk: Silent, *, has_draft: bool = True, **options: Any) -> tuple[ChatSession, dict[str, Any]]:
    config = ChatConfig(device="cpu", max_new_tokens=30, **options)
    draft = made / "draft" if has_draft else None
    chat = open_chat(made / "target", draft, config, cache=made / "cache", talk=talk)
    return chat.session, chat.about


@pytest.mark.parametrize("sampled", [{}, {"temperature": 0.7, "seed": 1}])
@pytest.mark.parametrize("k", ["0", "2", "auto"])
def test_captured_rounds_answer_as_the_readable_ones_do(made, k, sampled):
    readable, _ = opened(made, Silent(), has_draft=False, rounds="reference", **sampled)
    captured, about = opened(made, Silent(), rounds="uncaptured", num_draft_tokens=k, **sampled)

    assert about["target_path"] == "captured round, run eagerly"
    for prompt in ("hello", "and you?"):
        assert captured.answer(prompt).generation.ids == readable.answer(prompt).generation.ids


def test_an_interrupted_answer_of_captured_rounds_leaves_nothing_to_the_next(made):
    captured, _ = opened(made, Silent(), rounds="uncaptured", num_draft_tokens="2", raw=True)
    whole = captured.answer("hello")
    shown: list[str] = []
    cut = captured.answer("hello", lambda piece: shown.append(piece.text), lambda: len(shown) >= 3)

    assert cut.finish == "interrupted"
    assert whole.generation.ids[: len(cut.generation.ids)] == cut.generation.ids
    assert captured.answer("hello").generation.ids == whole.generation.ids


def test_sampled_texts_have_one_depth_in_captured_rounds_and_that_is_said(made):
    talk = Silent()
    _, about = opened(made, talk, rounds="uncaptured", temperature=1.0, seed=1)

    assert about["num_draft_tokens"] == 3
    assert talk.notes.count("-k auto is 3 here: captured rounds have a fixed depth when sampling") == 1
    assert opened(made, Silent(), rounds="reference", temperature=1.0, seed=1)[1]["num_draft_tokens"] == "auto"
    assert opened(made, Silent(), rounds="uncaptured")[1]["num_draft_tokens"] == "auto"


def test_a_draft_that_is_not_wanted_is_not_loaded(made):
    talk = Silent()
    session, about = opened(made, talk, num_draft_tokens="0")

    assert (session.has_draft, about["draft_path"]) == (False, None)
    assert "-k 0: the draft is not loaded" in talk.notes
