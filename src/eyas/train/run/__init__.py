"""A run from its first step to the written draft: checkpoints, records, ranks, end."""
