"""What is trained, on what, and how much: the three documents every cost formula reads.

All three are frozen pydantic models that refuse unknown fields.  The unit is the last word of
a field's name; a field without a unit is a count, a ratio or a share in 0..1.
"""

from cost_models.spec.cluster import AcceleratorSpec, ClusterSpec, NetworkTier, NodeGroup
from cost_models.spec.model import (
    EncoderSpec,
    FeedForwardKind,
    MLASpec,
    ModelSpec,
    MoESpec,
    StackSpec,
)
from cost_models.spec.training import DTYPE_BYTES, Part, Precision, TrainingSpec

__all__ = [
    "DTYPE_BYTES",
    "AcceleratorSpec",
    "ClusterSpec",
    "EncoderSpec",
    "FeedForwardKind",
    "MLASpec",
    "MoESpec",
    "ModelSpec",
    "NetworkTier",
    "NodeGroup",
    "Part",
    "Precision",
    "StackSpec",
    "TrainingSpec",
]
