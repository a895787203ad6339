"""Accept length without a server: run the draft's unrolled steps from every position of a recorded text.

- `replay`, `tree_replay`: the rounds over a text; `figures`: what they amount to;
- `states`, `probe_pack`: where the target's states come from;
- `evaluate`, `infer`, `predict`: the stages behind `eyas eval`, `eyas infer` and `eyas.predict`.
"""
