"""What ails a machine on which the planner is unhappy, and what to do about it."""
