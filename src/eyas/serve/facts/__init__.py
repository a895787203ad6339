"""What is known of a server at one moment, and the folder that it is written down in. No judgement."""
