"""What a draft and a target are, whatever the format: `DraftSpec`, `TargetSpec`, canonical tensor names, config keys.

`draft_spec.DraftSpec` is a draft as a function; `expected_tensors` says of which tensors it consists.
"""
