"""Programs for whoever works on the planner: each is run by `python -m tests.tools.NAME`."""
