"""Rounds that draft a tree instead of a chain."""
