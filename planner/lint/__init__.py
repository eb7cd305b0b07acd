"""Launch scripts of users: what they say, what is wrong with them, and what would be faster.

Nothing of a script is ever run: see planner.frameworks.reading.
"""
