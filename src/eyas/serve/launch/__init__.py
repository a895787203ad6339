"""Starting an engine: the plan, the command, the process, its end."""
