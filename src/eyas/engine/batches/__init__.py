"""Many sequences at once: plain, and with a chain of drafts for each."""
