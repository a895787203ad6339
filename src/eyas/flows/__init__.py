"""Joins sibling packages for one command; imports lazily."""
