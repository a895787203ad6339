"""What the target reads and writes, as text and as token ids: chat template, tokenizer, and the mask between them."""
