"""From one format to another: planned from headers, written aside, audited byte by byte."""
