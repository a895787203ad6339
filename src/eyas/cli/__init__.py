"""Parse, call, render. The only place that reads the environment, prints, prompts or exits."""
