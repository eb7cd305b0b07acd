"""Models of families that no reader here knows: built without weights, read from their modules."""

from planner.huggingface.looking.model import Looked, look_at

__all__ = ["Looked", "look_at"]
