"""Everything eyas knows of SGLang."""
