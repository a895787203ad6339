"""The first minute (`first_minute`): does the server speculate, and are its answers the target's own?"""
