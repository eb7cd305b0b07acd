"""`planner doctor`: checks of a machine and of the service's settings, each with advice."""
