"""Where accept length and time are lost."""
