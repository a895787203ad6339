"""What a log says: lines (`LogTail`, `LineSplitter`), the engines' tables, phases (`PhaseTracker`), tracebacks."""
