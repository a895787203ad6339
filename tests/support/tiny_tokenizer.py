"""A word-level tokenizer with a chat template for the tiny targets (64 ids), made in memory."""

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

WORDS = ["<pad>", "<s>", "</s>", "<unk>", "user", "assistant", "system"] + [f"w{i}" for i in range(57)]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %} {{ m.role }} {{ m.content }} {{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %} assistant{% endif %}"
)


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    return word_tokenizer(len(WORDS))


def word_tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    words = [*WORDS[:7], *(f"w{i}" for i in range(vocab_size - 7))]
    inner = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
        chat_template=TEMPLATE,
    )
