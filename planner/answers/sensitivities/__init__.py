"""Sensitivity of the answer to each input, and the values at which the best plan changes."""
