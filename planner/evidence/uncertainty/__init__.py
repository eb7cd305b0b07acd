"""How far off estimates may be: the posterior, intervals, memory risk, and the nearest runs."""
