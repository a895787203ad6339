"""Checkpoints as files: headers, configs, integer maps, read strictly and without torch. Knows no draft."""
