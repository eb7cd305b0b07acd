"""The search: axes, rules, partition of layers, and the exhaustive pass over all candidates."""
