"""Starting an engine: the plan (`plan_launch`), the run (`launch`), its end (`stop`)."""
