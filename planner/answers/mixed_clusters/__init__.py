"""Plans on clusters of different nodes: a part of them, all at the slowest's pace, or a pipeline
whose stages have as many layers as their nodes are fast and large.
"""

from planner.answers.mixed_clusters.compute import find

__all__ = ["find"]
