"""TensorRT-LLM: its loader, its launch and its log."""
