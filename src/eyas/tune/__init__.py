"""Which K, at which concurrency: `prediction` is the arithmetic, `run.tune` measures, predicts and confirms."""
