"""Models read from Hugging Face config.json files by mapping their keys to fields.

Each family is a table of keys and fields in a module of `families`, which is found by being there.
"""

from planner.huggingface.built_models import NotBuilt, building, model_from_modules
from planner.huggingface.config import ModelImportError, Problem, UnknownArchitecture
from planner.huggingface.families.registry import FAMILIES
from planner.huggingface.importer import ImportedModel, model_from_config

__all__ = [
    "FAMILIES",
    "ImportedModel",
    "ModelImportError",
    "NotBuilt",
    "Problem",
    "UnknownArchitecture",
    "building",
    "model_from_config",
    "model_from_modules",
]
