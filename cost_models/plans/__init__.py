"""One plan as a document (ParallelPlan) and many plans as arrays (Plans).

Both have the same fields.  In Plans a field is an int64 array with one element per plan, or a
0-d array where all plans agree; names are stored as their index in the vocabularies.
"""

from cost_models.plans.arrays import (
    FIELDS,
    FloatArray,
    IntArray,
    Plans,
    code,
    concatenate,
    encoded,
    is_one_of,
    joined,
)
from cost_models.plans.plan import (
    RECOMPUTE_MODULES,
    VOCABULARIES,
    AttentionKernel,
    ParallelPlan,
    RecomputeModule,
    RuntimeName,
    Schedule,
)

__all__ = [
    "FIELDS",
    "RECOMPUTE_MODULES",
    "VOCABULARIES",
    "AttentionKernel",
    "FloatArray",
    "IntArray",
    "ParallelPlan",
    "Plans",
    "RecomputeModule",
    "RuntimeName",
    "Schedule",
    "code",
    "concatenate",
    "encoded",
    "is_one_of",
    "joined",
]
