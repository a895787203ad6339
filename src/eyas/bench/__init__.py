"""Plain against speculative decoding on the same prompts: workload, arms, statistics, ceiling, verdict. No torch."""
