"""The first minute: does the server speculate, and are its answers the target's own?"""
