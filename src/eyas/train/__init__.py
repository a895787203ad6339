"""EAGLE-3 training with training-time test."""
