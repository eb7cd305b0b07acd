"""The search: axes, rules, dealing of layers, and the exhaustive pass over all candidates."""
