"""Sweeps: many requests from one grid, asked on many workers, kept as they are answered."""
