"""Measure: workload, arms, statistics. Knows an arm only as a Protocol."""
