"""What Megatron-LM and Megatron-DeepSpeed, which grew from it, say in the same words."""

from __future__ import annotations

from planner.frameworks.arguments import Arguments


def degrees(args: Arguments, size: int, cp_name: str) -> tuple[int, int, int, int]:
    """(tp, pp, cp, dp) on so many accelerators; context parallelism goes by the given name."""
    names = ("--tensor-model-parallel-size", "--pipeline-model-parallel-size", cp_name)
    tp, pp, cp = (args.positive(name) for name in names)
    if size % (tp * pp * cp):
        args.refuse(
            f"{size} accelerators are not a multiple of tp {tp} x cp {cp} x pp {pp} = "
            f"{tp * pp * cp}",
            *names,
            code="world_size",
        )
    return tp, pp, cp, max(size // (tp * pp * cp), 1)


def query_groups(args: Arguments, heads: int, groups: int, name: str) -> int:
    """The groups that the option of this name asks for, where the heads divide over them."""
    if heads % groups == 0:
        return groups
    args.refuse(f"--num-attention-heads {heads} is not a multiple of {name} {groups}", name)
    return heads


def position_rows(args: Arguments, seq_length: int) -> int:
    """Rows of the table of positions."""
    rows = args.integer("--max-position-embeddings")
    if rows < seq_length:
        args.refuse(
            f"--max-position-embeddings is {rows or 'missing'}; at least the sequence length "
            f"{seq_length} is needed",
            "--max-position-embeddings",
            "--seq-length",
        )
    return rows
