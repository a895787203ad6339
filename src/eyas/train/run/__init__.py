"""A run from its first step to the written draft: `train.train` in one process, `launch_ranks.train_on` in several."""
