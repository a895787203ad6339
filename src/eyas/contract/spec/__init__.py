"""What a draft and a target are, in one form each: sizes, switches, tensors, and how they are read from a config."""
