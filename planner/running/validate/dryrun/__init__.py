"""`planner dryrun`: ranks of a plan at full scale, traced with fake tensors."""
