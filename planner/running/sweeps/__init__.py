"""Sweeps: all requests of a grid, answered by parallel workers; results are stored one by one."""
