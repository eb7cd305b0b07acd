"""From a request to its answer: plans, picks, explanations, comparisons and launch files."""
