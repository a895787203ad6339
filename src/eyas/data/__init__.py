"""From conversations to tokenised rows with an exact assistant-only loss mask.

- `prepare`: the stage behind `eyas prepare`; `prepare_config`: its options;
- `writing`: conversations and answers that the target writes itself;
- `rows`: which rows are made of which records, and the folder that holds them;
- `text`: the target's chat template and tokenizer, and what of a rendered text is the target's own.
"""
