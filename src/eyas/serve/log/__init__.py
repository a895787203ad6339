"""What a log says: lines followed, phases, known failures, tracebacks."""
