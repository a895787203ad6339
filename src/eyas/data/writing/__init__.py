"""What the target writes for its own draft: conversations with itself, and its answers to recorded user turns."""
