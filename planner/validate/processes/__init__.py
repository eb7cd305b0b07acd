"""Processes of runs: started with limits, watched, and ended together."""
