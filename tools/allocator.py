"""How much of its memory torch's caching allocator cannot use in training steps, simulated.

    python -m tools.allocator

The rules are those of c10/cuda/CUDACachingAllocator.cpp with fixed segments on one stream: sizes
and segments are rounded, the best fitting block is split, neighbours merge, and segments without
a tensor are returned before it fails.  Tensors are those of decoder layers under 1F1B with tensor
and sequence parallelism, with Adam's states from the first optimizer step on.

Printed are, as shares of the temporary memory of a step: what is reserved beyond the tensors where
there is room, and the least with which the steps run.  The means of the second, without recompute
and with full recompute, are in `cost_models.overheads`.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field

MIB, GIB = 2**20, 2**30
SMALL_BYTES, SMALL_SEGMENT_BYTES = MIB, 2 * MIB
LARGE_BYTES, LARGE_SEGMENT_BYTES = 10 * MIB, 20 * MIB
BLOCK_BYTES = 512
STEPS = 3
# Zero states of eight ranks; fp32 gradients.
DATA_RANKS, GRADIENT_BYTES = 8, 4
WIDTHS = {  # hidden, MLP, queries, keys, vocabulary, layers
    "8B": (4096, 14336, 4096, 1024, 128256, 32),
    "13B": (5120, 13824, 5120, 5120, 32000, 40),
    "70B": (8192, 28672, 8192, 1024, 128256, 80),
    "175B": (12288, 24576, 12288, 12288, 51200, 96),
}
PLANS = (  # tokens, tp, pp, micro-batches
    (8192, 1, 1, 4), (4096, 1, 2, 8), (8192, 2, 2, 8), (8192, 4, 4, 16), (2048, 4, 8, 32),
    (4096, 8, 8, 32), (8192, 8, 4, 16), (16384, 8, 4, 8),
)  # fmt: skip
MOST_BYTES = 144 * GIB

Event = tuple[str, int]  # the name of a tensor, and its bytes; 0: it is freed


class OutOfMemory(Exception):
    """The allocator fails."""


@dataclass(eq=False)
class _Block:
    size: int
    small: bool
    before: _Block | None = None
    after: _Block | None = None
    free: bool = False


@dataclass
class CachingAllocator:
    """Memory of one stream; capacity in bytes, None: without end."""

    capacity: int | None = None
    reserved: int = 0
    allocated: int = 0
    peak_reserved: int = 0
    peak_allocated: int = 0
    _free: dict[bool, list[tuple[int, int, _Block]]] = field(
        default_factory=lambda: {True: [], False: []}
    )

    def allocate(self, wanted: int) -> _Block:
        """A block of so many bytes.  Raises OutOfMemory."""
        size = max(-(-wanted // BLOCK_BYTES), 1) * BLOCK_BYTES
        small = size <= SMALL_BYTES
        pool = self._free[small]
        place = bisect_left(pool, (size, 0))
        block = pool.pop(place)[2] if place < len(pool) else self._segment(size, small)
        block.free = False
        rest = block.size - size
        if rest >= BLOCK_BYTES if small else rest > SMALL_BYTES:
            other = _Block(rest, small, block, block.after)
            if block.after is not None:
                block.after.before = other
            block.after, block.size = other, size
            self._put(other)
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def release(self, block: _Block) -> None:
        """Free a block, which merges with its free neighbours."""
        self.allocated -= block.size
        before, after = block.before, block.after
        if before is not None and before.free:
            self._take(before)
            block.size, block.before = block.size + before.size, before.before
            if block.before is not None:
                block.before.after = block
        if after is not None and after.free:
            self._take(after)
            block.size, block.after = block.size + after.size, after.after
            if block.after is not None:
                block.after.before = block
        self._put(block)

    def _segment(self, size: int, small: bool) -> _Block:
        segment = -(-size // SMALL_SEGMENT_BYTES) * SMALL_SEGMENT_BYTES
        if small:
            segment = SMALL_SEGMENT_BYTES
        elif size < LARGE_BYTES:
            segment = LARGE_SEGMENT_BYTES
        if self.capacity is not None and self.reserved + segment > self.capacity:
            self._return_segments()
            if self.reserved + segment > self.capacity:
                raise OutOfMemory
        self.reserved += segment
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return _Block(segment, small)

    def _return_segments(self) -> None:
        for pool in self._free.values():
            whole = [one for one in pool if one[2].before is None and one[2].after is None]
            for one in whole:
                pool.remove(one)
                self.reserved -= one[0]

    def _put(self, block: _Block) -> None:
        block.free = True
        insort(self._free[block.small], (block.size, id(block), block))

    def _take(self, block: _Block) -> None:
        pool = self._free[block.small]
        del pool[bisect_left(pool, (block.size, id(block)))]


@dataclass(frozen=True)
class Stage:
    """A stage of a pipeline; tokens: of a micro-batch; the rest as in WIDTHS."""

    hidden: int
    ffn: int
    queries: int
    keys: int
    vocab: int
    layers: int
    tokens: int
    tp: int
    pp: int
    stage: int
    recomputes: bool = False
    """Every layer keeps its input alone, and is computed again before its backward pass."""

    @property
    def first(self) -> bool:
        return self.stage == 0

    @property
    def last(self) -> bool:
        return self.stage == self.pp - 1

    def weights(self) -> list[int]:
        """Elements of each matrix of a rank."""
        h, kinds = self.hidden, (self.queries + 2 * self.keys, self.queries, 2 * self.ffn, self.ffn)
        ends = [self.vocab * h // self.tp] * (self.first + self.last)
        return [h * width // self.tp for width in kinds] * self.layers + ends

    def states(self) -> Iterator[Event]:
        """Weights, gradients and master weights."""
        yield "weights", 2 * sum(self.weights())
        yield "gradients", GRADIENT_BYTES * sum(self.weights())
        for k, elements in enumerate(self.weights()):
            yield f"master {k}", 4 * elements // DATA_RANKS

    def moments(self) -> Iterator[Event]:
        """Adam's states, which exist from its first step on."""
        for k, elements in enumerate(self.weights()):
            yield f"first moment {k}", 4 * elements // DATA_RANKS
            yield f"second moment {k}", 4 * elements // DATA_RANKS

    def _sizes(self) -> dict[str, int]:
        """Bytes of the tensors of a layer: in halves, split over tp but for `whole`."""
        half = 2 * self.tokens
        split = half // self.tp
        return {
            "whole": half * self.hidden, "shard": split * self.hidden,
            "qkv": split * (self.queries + 2 * self.keys), "query": split * self.queries,
            "key": split * self.keys, "gates": split * 2 * self.ffn, "act": split * self.ffn,
            "logits": split * self.vocab, "lse": 4 * self.tokens * self.queries // 128 // self.tp,
        }  # fmt: skip

    def forward(self, run: int) -> Iterator[Event]:
        """One micro-batch: kept tensors are named by the run, the others are freed here."""
        b = self._sizes()
        yield f"{run} input", b["shard"]
        for k in range(self.layers):
            inside = list(self._inside(f"{run} {k}"))
            yield from inside
            yield from self._scattered((f"{run} {k} output", b["shard"]))
            if self.recomputes:
                kept = dict.fromkeys(name for name, _ in inside if name.startswith(f"{run} {k} "))
                yield from ((name, 0) for name in kept)
        if self.last:
            yield f"{run} last norm", b["shard"]
            yield from self._gathered(("half logits", b["logits"]))
            yield f"{run} logits", 2 * b["logits"]
            yield "half logits", 0

    def _inside(self, kept: str) -> Iterator[Event]:
        """A layer up to its last product."""
        b = self._sizes()
        yield f"{kept} norm", b["shard"]
        yield from self._gathered(("qkv", b["qkv"]))
        for name, size in (("query", "query"), ("key", "key"), ("value", "key")):
            yield f"{kept} {name}", b[size]
        yield "qkv", 0
        yield f"{kept} context", b["query"]
        yield f"{kept} lse", b["lse"]
        yield from self._scattered((f"{kept} residual", b["shard"]))
        yield f"{kept} norm 2", b["shard"]
        yield from self._gathered((f"{kept} gates", b["gates"]))
        yield f"{kept} act", b["act"]

    def backward(self, run: int) -> Iterator[Event]:
        """Of one micro-batch, which frees what its forward pass kept."""
        b = self._sizes()
        if self.last:
            yield "logits gradient", b["logits"]
            yield f"{run} logits", 0
            yield "whole", b["whole"]
            yield "logits gradient", 0
            yield f"{run} last norm", 0
        yield "gradient", b["shard"]
        if self.last:
            yield "whole", 0
        for k in reversed(range(self.layers)):
            kept = f"{run} {k}"
            if self.recomputes:
                yield from self._inside(kept)
            yield f"{kept} output", 0
            yield "whole gradient", b["whole"]
            yield "act gradient", b["act"]
            yield f"{kept} act", 0
            yield "gates gradient", b["gates"]
            yield "act gradient", 0
            yield f"{kept} gates", 0
            yield from self._into(kept, "gates gradient", "norm 2")
            yield "whole gradient", b["whole"]
            yield "context gradient", b["query"]
            yield "whole gradient", 0
            for name, size in (("query", "query"), ("key", "key"), ("value", "key")):
                yield f"{name} gradient", b[size]
            yield "context gradient", 0
            for name in ("residual", "lse", "context", "value", "key", "query"):
                yield f"{kept} {name}", 0
            yield "qkv gradient", b["qkv"]
            for name in ("query", "key", "value"):
                yield f"{name} gradient", 0
            yield "whole gradient", b["whole"]
            yield from self._into(kept, "qkv gradient", "norm")
        yield f"{run} input", 0
        yield "gradient", 0

    def _gathered(self, made: Event) -> Iterator[Event]:
        """A product of an input that is gathered before, and gone after it."""
        yield "gathered", self._sizes()["whole"]
        yield made
        yield "gathered", 0

    def _scattered(self, made: Event) -> Iterator[Event]:
        """A product whose output is scattered, and added to the residual stream."""
        b = self._sizes()
        yield "product", b["whole"]
        yield "scattered", b["shard"]
        yield "product", 0
        yield made
        yield "scattered", 0

    def _into(self, kept: str, gradient: str, norm: str) -> Iterator[Event]:
        """The gradient of a product's input, and that of the norm before it."""
        b = self._sizes()
        yield "gathered", b["whole"]
        yield "input gradient", b["whole"]
        yield gradient, 0
        yield "gathered", 0
        yield "whole gradient", 0
        yield "shard gradient", b["shard"]
        yield "input gradient", 0
        yield f"{kept} {norm}", 0
        yield "next gradient", b["shard"]
        yield "shard gradient", 0
        yield "gradient", 0
        yield "gradient", b["shard"]
        yield "next gradient", 0

    def steps(self, micro_batches: int) -> Iterator[Event]:
        """Some steps of 1F1B."""
        yield from self.states()
        ahead = min(self.pp - self.stage, micro_batches)
        for step in range(STEPS):
            for run in range(ahead):
                yield from self.forward(run)
            for run in range(micro_batches):
                yield from self.backward(run)
                if run + ahead < micro_batches:
                    yield from self.forward(run + ahead)
            if step == 0:
                yield from self.moments()


def replay(events: list[Event], capacity: int | None = None) -> CachingAllocator:
    """The allocator after some events.  Raises OutOfMemory."""
    allocator, blocks = CachingAllocator(capacity), dict[str, _Block]()
    for name, size in events:
        if size:
            blocks[name] = allocator.allocate(size)
        else:
            allocator.release(blocks.pop(name))
    return allocator


def least_bytes(events: list[Event], allocator: CachingAllocator) -> int:
    """The least capacity with which the events run, to a fiftieth of what is reserved beyond."""
    low, high = allocator.peak_allocated, allocator.peak_reserved
    close = (high - low) / 50
    while high - low > close:
        middle = (low + high) // 2
        try:
            replay(events, middle)
            high = middle
        except OutOfMemory:
            low = middle
    return high


def shares(stage: Stage, micro_batches: int) -> tuple[float, float] | None:
    """Bytes that are reserved beyond tensors, and that are needed beyond them, as shares of the
    temporary memory; None where no accelerator holds the stage.
    """
    events = list(stage.steps(micro_batches))
    allocator = replay(events)
    if allocator.peak_reserved > MOST_BYTES:
        return None
    kept = sum(size for _, size in (*stage.states(), *stage.moments()))
    temporary = allocator.peak_allocated - kept
    beyond = allocator.peak_reserved - allocator.peak_allocated
    needed = least_bytes(events, allocator) - allocator.peak_allocated
    return beyond / temporary, needed / temporary


def main() -> None:
    """Print the shares of every stage that differs from its neighbours, and their means."""
    for recomputes in (False, True):
        found = []
        for name, (hidden, ffn, queries, keys, vocab, layers) in WIDTHS.items():
            for tokens, tp, pp, micro_batches in PLANS:
                for stage in sorted({0, pp // 2, pp - 1}):
                    own = Stage(
                        hidden, ffn, queries, keys, vocab, layers // pp, tokens, tp, pp, stage,
                        recomputes,
                    )  # fmt: skip
                    if (both := shares(own, micro_batches)) is not None:
                        found.append(both)
                        where = f"{name:5} {tokens:6,} tokens  tp {tp}  pp {pp}  stage {stage}"
                        print(f"{where}  reserved {both[0]:6.1%}  needed {both[1]:6.1%}")
        reserved, needed = (statistics.mean(column) for column in zip(*found, strict=True))
        kind = "full recompute" if recomputes else "no recompute"
        print(f"{kind}, mean of {len(found)}: reserved {reserved:.1%}, needed {needed:.1%}")


if __name__ == "__main__":
    main()
