"""Models of families that no reader here knows: built without weights, read from their modules."""

from planner.huggingface.module_inspection.model import InspectedModel, inspect_model

__all__ = ["InspectedModel", "inspect_model"]
