"""What the planner knows without a request: the entries of the catalog, its version and machine."""
