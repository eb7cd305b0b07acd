"""Programs for whoever works on the planner; none of them is in the wheel."""
