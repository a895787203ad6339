"""One module for each command, of the same name: its options, the call of its stage, what it prints."""
