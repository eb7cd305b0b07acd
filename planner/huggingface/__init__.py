"""Models from Hugging Face config.json files, by plain mapping.

One function per family, in files by theme; one line each in `families.FAMILIES`.
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
