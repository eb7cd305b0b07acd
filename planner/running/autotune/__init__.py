"""Tuning: which of the best plans to run next, until a faster one is hardly left."""
