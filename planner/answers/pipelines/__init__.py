"""Pipelines over time: the timeline of one schedule, and all schedules side by side."""
