"""The draft and its target as models.

- `draft`, `draft_layer`, `attention`, `mla`, `rope`: the reference semantics of an EAGLE-3 draft (docs/semantics.md);
- `load_draft`, `save_draft`: from a folder and into one;
- `target`: the target in memory; `target_folder`: the folder that `--target` names;
- `chat_prompt`: tokenizer and chat template; `placement`: dtype and device.
"""
