"""An optimiser step on one or several ranks, and what it keeps."""
