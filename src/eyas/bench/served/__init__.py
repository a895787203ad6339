"""A server measured over HTTP, alone or beside a baseline. No torch, no engine's name."""
