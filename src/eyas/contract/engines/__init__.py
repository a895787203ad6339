"""Load rules: what each serving engine, by version and draft class, does with each tensor and config key."""
