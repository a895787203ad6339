"""Speed of plain and speculative decoding on the same prompts: `bench_engine` measures, `run_bench` judges."""
