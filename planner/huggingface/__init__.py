"""Models read from Hugging Face config.json files by mapping their keys to fields.

Each family has a function, in files by theme, and a line in `families.registry.FAMILIES`.
"""

from planner.huggingface.built_models import model_from_modules
from planner.huggingface.config import ModelImportError, Problem, UnknownArchitecture
from planner.huggingface.families.registry import FAMILIES
from planner.huggingface.importer import ImportedModel, model_from_config

__all__ = [
    "FAMILIES",
    "ImportedModel",
    "ModelImportError",
    "Problem",
    "UnknownArchitecture",
    "model_from_config",
    "model_from_modules",
]
