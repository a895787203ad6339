"""A tiny target that writes: small letters, blanks and ends of turns, at low temperatures."""

from pathlib import Path

import torch

from byte_tokenizer import byte_tokenizer
from tiny_target import tiny_target


def save_writing_target(folder: Path) -> Path:
    """A folder that `eyas prepare --self-chat` can be run on; byte tokenizer, ChatML."""
    tokenizer = byte_tokenizer()
    model = tiny_target("llama", vocab_size=len(tokenizer))
    wanted = [*tokenizer("abcdefgh ")["input_ids"], tokenizer.convert_tokens_to_ids("<|im_end|>")]
    with torch.no_grad():
        head = model.lm_head.weight
        head[[i for i in range(len(tokenizer)) if i not in wanted]] = 0.0
        head[wanted] *= 3.0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
