"""The rules of speculation: what a verify pass accepts, and the one definition of accept length."""
