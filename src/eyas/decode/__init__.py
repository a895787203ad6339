"""The rules of speculation, without any model.

- `chain`, `tree`, `tree_rules`: what is drafted, and what a verify pass accepts; `sampling`: how a token is chosen;
- `accept_length`: the one definition of accept length.
"""
