"""Launch scripts of users: their contents, their problems, and faster plans.

Nothing of a script is ever run: see planner.frameworks.read_results.
"""
