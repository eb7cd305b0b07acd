"""Processes of runs: start under limits, supervision, and ending all of them together."""
