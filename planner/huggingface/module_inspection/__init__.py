"""Models of families without a reader: built without weights and read from their modules."""

from planner.huggingface.module_inspection.model import InspectedModel, inspect_model

__all__ = ["InspectedModel", "inspect_model"]
