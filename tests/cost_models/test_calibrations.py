"""What was measured prices what it measured, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from cost_models import profiles
from cost_models.calibrations import PARTS_OF_TERM, Calibration, Points, over_base
from cost_models.catalog import hardware
from cost_models.estimate import CostModel, Estimates
from cost_models.measured_tables import Measured, RateGrid, linear_through
from cost_models.plans import ParallelPlan, Plans
from cost_models.spec import ModelSpec, TrainingSpec

MODEL = ModelSpec(
    num_layers=4, hidden_size=1024, num_attention_heads=16, ffn_hidden_size=4096, vocab_size=8192,
    gated_mlp=False, norm="layernorm", position="learned", max_position_embeddings=512,
)  # fmt: skip
TRAINING = TrainingSpec(seq_length=512, global_batch_size=8)
ONE = ParallelPlan(runtime="torch", cross_entropy="unfused", zero_stage=0, micro_batch_size=2)


def timed(seconds: float, **shape: Any) -> dict[str, Any]:
    return {"seconds": seconds, "low_s": seconds, "high_s": seconds, "repeats": 3, **shape}


def calibration(device: str = "cuda", **points: list[dict[str, Any]]) -> Calibration:
    return Calibration.model_validate_json(
        Calibration.model_construct(
            schema_version=1, id="mine", extends="h100-sxm", measured_at="2026-11-20T12:00:00Z",
            device=device, hardware={"device": "a card"}, software={"torch": "2.13.0"}, notes=(),
            points=points,
        ).model_dump_json(warnings=False)
    )  # fmt: skip


def estimate(found: Calibration | None, plan: ParallelPlan = ONE) -> Estimates:
    group = hardware.node_group("h100-sxm", 1, plan.tp * plan.pp * plan.dp * plan.cp)
    cluster = hardware.cluster_of("mine", group)
    profile = over_base(found) if found is not None else None
    return CostModel(MODEL, cluster, TRAINING, profile).evaluate(Plans.from_rows([plan]))


def parts(found: Estimates) -> dict[str, float]:
    return {name: float(value[0]) for name, value in found.time_parts_s.items()}


def test_a_grid_has_its_points_and_lies_between_them() -> None:
    sizes = [(m, n) for m in (64.0, 256.0) for n in (128.0, 512.0, 2048.0)]
    grid = RateGrid.of(sizes, [m * n for m, n in sizes])
    for m, n in sizes:
        assert grid.rate(m, n) == pytest.approx(m * n)
    # A power law is a plane in logarithms.
    assert grid.rate(np.array([128.0]), np.array([1000.0])) == pytest.approx(128e3)


def test_a_grid_holds_its_edge_and_takes_the_nearest_for_a_hole() -> None:
    grid = RateGrid.of([(1.0, 1.0), (4.0, 1.0), (4.0, 4.0)], [1.0, 2.0, 3.0])
    assert grid.rate(100.0, 100.0) == pytest.approx(3.0)
    assert grid.rate(1.0, 4.0) in (pytest.approx(1.0), pytest.approx(3.0))


@pytest.mark.slow
def test_arrays_and_numbers_have_the_same_rate() -> None:
    rng = np.random.default_rng(1)
    points = rng.uniform(1, 1e6, (40, 3))
    grid = RateGrid.of(points.tolist(), rng.uniform(1, 1e12, 40).tolist())
    at = rng.uniform(0.1, 1e7, (3, 50))
    together = grid.rate(*at)
    assert together == pytest.approx([float(grid.rate(*one)) for one in at.T])


def test_a_line_has_no_negative_part() -> None:
    line = linear_through([(10.0, 1.0), (100.0, 1.9)])
    assert (line.fixed_s, line.per_unit_s) == (pytest.approx(0.9), pytest.approx(0.01))
    assert linear_through([(1.0, 2.0), (100.0, 1.0)]).per_unit_s == 0.0
    steep = linear_through([(1.0, 0.1), (100.0, 100.0)])
    assert steep.fixed_s == 0.0
    assert linear_through([(4.0, 2.0)]).per_unit_s == 0.5


def gemms(flop_per_s: float) -> list[dict[str, Any]]:
    return [
        timed(2.0 * 1024**3 / flop_per_s, precision="bf16", product=product, m=1024, n=1024, k=1024)
        for product in ("forward", "input_gradient", "weight_gradient")
    ]


def test_a_measured_rate_of_matrix_products_is_that_of_the_estimate() -> None:
    slow, fast = (parts(estimate(calibration(gemm=gemms(rate)))) for rate in (1e12, 2e12))
    # Per token forward: 2 FLOP per weight of the layers and of the head.
    weights = 4 * 12 * 1024**2 + 1024 * 8192
    saved_s = 2.0 * weights * 512 * 8 * (1 / 1e12 - 1 / 2e12)
    assert slow["forward"] - fast["forward"] == pytest.approx(saved_s, rel=1e-9)
    assert slow["backward"] - fast["backward"] == pytest.approx(2 * saved_s, rel=1e-9)


def test_a_calibration_touches_only_what_it_measured() -> None:
    before = parts(estimate(None))
    after = parts(estimate(calibration(gemm=gemms(1e12))))
    assert {name for name in before if before[name] != after[name]} == {"forward", "backward"}
    assert parts(estimate(calibration())) == before


def test_the_optimizer_takes_what_was_measured() -> None:
    points = [
        timed(1e-3 * n + 1e-9 * p, parameters=p, tensors=n) for p, n in ((1e5, 50), (1e8, 50))
    ]
    after = parts(estimate(calibration(optimizer=points)))
    tensors = 4 * (4 + 2 + 2 * 2) + 2 + 1 + 2
    parameters = 4 * (12 * 1024**2 + 4 * 1024) + 2 * 8192 * 1024 + 512 * 1024 + 2 * 1024
    assert after["optimizer"] == pytest.approx(1e-3 * tensors + 1e-9 * parameters, rel=1e-3)


def test_collectives_are_those_measured() -> None:
    plan = ONE.model_copy(update={"tp": 2})
    rate = 1e9

    def points(latency_s: float) -> list[dict[str, Any]]:
        sizes = (2.0**10, 2.0**20, 2.0**30)
        return [
            timed(latency_s + size / rate, op=op, ranks=2, bytes=size)
            for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
            for size in sizes
        ]

    found = parts(estimate(calibration(collectives=points(0.0)), plan))
    # 2 all-reduces each way of every layer, and one of the embedding, one of the head's input ...
    activation_s = 2 * 512 * 1024 * 2 / rate
    assert found["tp_comm"] > 4 * 4 * 4 * activation_s
    assert found["tp_comm"] == pytest.approx(4 * (4 * 4 + 2) * activation_s, rel=0.02)


def hosts(seconds: float) -> list[dict[str, Any]]:
    sides = ("forward", "backward")
    return [timed(seconds, runtime="layer", direction=side) for side in sides]


def test_what_the_host_does_between_kernels_adds_where_the_host_computes() -> None:
    less, more = (
        parts(estimate(calibration("cpu", gemm=gemms(1e10), host=hosts(s)))) for s in (1e-3, 3e-3)
    )
    assert more["forward"] - less["forward"] == pytest.approx(4 * 4 * 2e-3, rel=1e-6)


def test_it_hides_under_kernels_where_a_device_computes() -> None:
    less, more = (
        parts(estimate(calibration("cuda", gemm=gemms(1e10), host=hosts(s)))) for s in (1e-3, 3e-3)
    )
    assert more == less
    longer = parts(estimate(calibration("cuda", gemm=gemms(1e10), host=hosts(100.0))))
    assert longer["forward"] > 4 * 4 * 100.0


def test_neighbours_slow_kernels_down_as_measured() -> None:
    crowd = [timed(3.0, kernel="gemm", ranks=2, alone_s=2.0)]
    plan = ONE.model_copy(update={"tp": 2})
    free, crowded = (
        parts(estimate(calibration(gemm=gemms(1e10), crowding=some), plan)) for some in ([], crowd)
    )
    assert crowded["backward"] / free["backward"] == pytest.approx(1.5, rel=0.01)


def test_every_kind_of_point_prices_some_part() -> None:
    assert set(PARTS_OF_TERM) == set(Points.model_fields)
    assert {part for priced in PARTS_OF_TERM.values() for part in priced} <= set(
        parts(estimate(None))
    )


def tables(device: str = "cuda", **points: list[dict[str, Any]]) -> Measured:
    found = over_base(calibration(device, **points)).measured
    assert found is not None
    return found


def test_kernels_become_rates() -> None:
    """FLOP or bytes over seconds, by everything but the size; no time at all is 1 ns."""
    found = tables(
        gemm=[
            timed(2.0, precision="bf16", product="forward", m=2, n=4, k=8),
            timed(0.5, precision="bf16", product="forward", m=4, n=4, k=8),
            timed(0.0, precision="fp8", product="input_gradient", m=1, n=1, k=1),
        ],
        attention=[
            timed(4.0, precision="bf16", direction="backward", head_dim=64, seq_length=8, flop=100)
        ],
        passes=[timed(4.0, precision="bf16", kernel="norm", direction="forward", bytes=64)],
    )
    forward = found.gemm["bf16", "forward"]
    assert forward.rate(2.0, 4.0, 8.0) == pytest.approx(64.0)
    assert forward.rate(4.0, 4.0, 8.0) == pytest.approx(512.0)
    assert found.gemm["fp8", "input_gradient"].rate(1.0, 1.0, 1.0) == pytest.approx(2e9)
    assert found.attention["bf16", "backward"].rate(64.0, 8.0) == pytest.approx(25.0)
    assert found.passes["bf16", "norm", "forward"].rate(64.0) == pytest.approx(16.0)
    assert not found.synchronous
    assert (found.contention, found.message, found.optimizer) == (None, None, None)


def test_lines_medians_and_ratios() -> None:
    sides = ({"wrapper": "replicate", "direction": "reduce"},
             {"wrapper": "fully_shard", "direction": "forward"})  # fmt: skip
    found = tables(
        "cpu",
        wrapper=[
            timed(fixed + 2e-3 * size, parameters=size, **side)
            for fixed, side in enumerate(sides)
            for size in (1e3, 1e6)
        ],
        optimizer=[
            timed(n * (0.5 + 1e-3 * p), parameters=n * p, tensors=n)
            for n, p in ((2.0, 1e3), (5.0, 1e6))
        ],
        crowding=[
            timed(9.0, kernel="memory", ranks=4, alone_s=3.0),
            timed(3.0, kernel="memory", ranks=2, alone_s=2.0),
        ],
        contention=[timed(s, ranks=2, collective_s=2.0) for s in (1.0, 2.0, 9.0)],
        collectives=[timed(1e-3 + n * 1e-6, op="send_recv", ranks=2, bytes=n) for n in (1e3, 1e6)],
        host=hosts(0.25),
    )
    replicate = found.wrapper["replicate", "reduce"]
    assert (replicate.fixed_s, replicate.per_unit_s) == (pytest.approx(0, abs=1e-9), 2e-3)
    assert found.wrapper["fully_shard", "forward"].fixed_s == pytest.approx(1.0)
    assert found.optimizer == (pytest.approx(0.5), pytest.approx(1e-3))
    assert found.crowding == {"memory": ((1, 1.0), (2, 1.5), (4, 3.0))}
    assert found.contention == 1.0
    assert found.message is not None
    assert (found.message.fixed_s, found.message.per_unit_s) == pytest.approx((1e-3, 1e-6))
    assert found.host == {("layer", "forward"): 0.25, ("layer", "backward"): 0.25}
    assert found.synchronous


def test_collectives_become_tables_over_all_their_sizes() -> None:
    """Four ranks lack 32 bytes: between 8 and 128, half way in logarithms."""
    points = [(2, 8, 1.0), (2, 32, 2.0), (2, 128, 3.0), (4, 8, 4.0), (4, 128, 16.0)]
    profile = over_base(
        calibration(
            collectives=[
                timed(seconds, op="all_gather", ranks=ranks, bytes=size)
                for ranks, size, seconds in reversed(points)
            ]
        )
    )
    found = profile.collectives["all_gather"]
    assert found.ranks.tolist() == [2, 4]
    assert found.bytes.tolist() == [8, 32, 128]
    assert found.seconds.tolist() == [pytest.approx([1, 2, 3]), pytest.approx([4, 8, 16])]
    # The others are still those of the built-in profile, at the links of this machine.
    base = profiles.profile("h100-sxm")
    assert profile.collectives["all_reduce"] is base.collectives["all_reduce"]
    assert profile.collective_link_bytes_per_s is None
    untouched = over_base(calibration(gemm=gemms(1e12)))
    assert untouched.collective_link_bytes_per_s == base.collective_link_bytes_per_s is not None


def test_a_calibrated_profile_names_itself_and_its_base() -> None:
    profile, base = over_base(calibration()), profiles.profile("h100-sxm")
    assert profile.name == "mine, measured on a card"
    assert profile.source.startswith("planner calibrate, 2026-11-20T12:00:00Z")
    assert profile.source.endswith(base.name)
    assert profile.notes == tuple(f"h100-sxm: {note}" for note in base.notes)
    assert profile.measured_terms == ()
    unnamed = calibration().model_copy(update={"hardware": {}, "notes": ("by hand",)})
    assert over_base(unnamed).name == "mine, measured on cuda"
    assert over_base(unnamed).notes[0] == "by hand"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", "../../etc/passwd"),
        ("id", ""),
        ("schema_version", 2),
        ("measured_at", "yesterday"),
        ("device", "abacus"),
        ("hardware", {"device": "a\x1b[31m card"}),
        ("points", {"gemm": [{"seconds": 1.0}]}),
        ("points", {"magic": []}),
        ("points", {"gemm": [timed(1.0, precision="bf16", product="forward", m=0, n=1, k=1)]}),
        ("points", {"optimizer": [timed(float("nan"), parameters=1, tensors=1)]}),
        ("points", {"optimizer": [{**timed(1.0, parameters=1, tensors=1), "low_s": 2.0}]}),
        ("points", {"optimizer": [{**timed(1.0, parameters=1, tensors=1), "high_s": 0.5}]}),
    ],
)
def test_a_file_that_says_something_else_is_refused(field: str, value: Any) -> None:
    document = calibration().model_dump()
    with pytest.raises(ValidationError):
        Calibration.model_validate({**document, field: value})


SMALL = {
    "host": {"runtime": "layer", "direction": "forward"},
    "wrapper": {"wrapper": "replicate", "direction": "reduce", "parameters": 1},
    "optimizer": {"parameters": 1, "tensors": 1},
    "crowding": {"kernel": "gemm", "ranks": 2, "alone_s": 1},
    "contention": {"ranks": 2, "collective_s": 1},
}


@pytest.mark.parametrize("name", SMALL)
def test_a_file_has_at_most_a_hundred_points_that_are_few_by_nature(name: str) -> None:
    point = timed(1.0, **SMALL[name])
    assert len(getattr(Points.model_validate({name: [point] * 100}), name)) == 100
    with pytest.raises(ValidationError, match="at most 100"):
        Points.model_validate({name: [point] * 101})


def test_kernels_have_at_most_20_000_points() -> None:
    point = timed(1.0, precision="bf16", product="forward", m=1, n=1, k=1)
    with pytest.raises(ValidationError, match="at most 20000"):
        Points.model_validate({"gemm": [point] * 20_001})


def test_a_file_may_leave_out_its_version_and_notes() -> None:
    document = calibration().model_dump(exclude={"schema_version", "notes"})
    found = Calibration.model_validate(document)
    assert (found.schema_version, found.notes) == (1, ())
    assert all(getattr(Points(), name) == () for name in Points.model_fields)


@pytest.mark.parametrize("name", ["hardware", "software", "notes"])
def test_a_file_has_at_most_32_lines_of_each_kind_of_text(name: str) -> None:
    document = calibration().model_dump()
    words = [f"word {i}" for i in range(33)]

    def of(count: int) -> Any:
        return words[:count] if name == "notes" else dict.fromkeys(words[:count], "text")

    assert len(getattr(Calibration.model_validate({**document, name: of(32)}), name)) == 32
    with pytest.raises(ValidationError, match="at most 32"):
        Calibration.model_validate({**document, name: of(33)})


def test_the_profile_says_what_it_measured() -> None:
    profile = over_base(calibration(gemm=gemms(1e12)))
    assert (profile.kind, profile.id, profile.extends) == ("calibrated", "mine", "h100-sxm")
    assert profile.measured_terms == ("gemm",)
    assert replace(profile, measured=None).gemm is over_base(calibration()).gemm


def test_a_calibration_may_stand_in_the_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("h100-sxm", "generic"):
        text = (profiles._DIRECTORY / f"{name}.json").read_text(encoding="utf-8")
        (tmp_path / f"{name}.json").write_text(text, encoding="utf-8")
    (tmp_path / "mine.json").write_text(calibration(gemm=gemms(1e12)).model_dump_json())
    cached = (profiles.profiles, profiles.profile, profiles._profile_at, profiles._document)
    monkeypatch.setattr(profiles, "_DIRECTORY", tmp_path)
    try:
        for one in cached:
            one.cache_clear()
        own = hardware.accelerator("h100-sxm").model_copy(update={"efficiency_profile": "mine"})
        assert profiles.profile_for(own).measured_terms == ("gemm",)
    finally:
        for one in cached:
            one.cache_clear()


@pytest.mark.parametrize(
    ("zero_stage", "keeps", "forwards", "reduces"),
    [(0, False, 2, 1), (0, True, 1, 1), (2, False, 2, 2), (2, True, 1, 2)],
)
def test_the_data_parallel_wrapper_takes_what_was_measured(
    zero_stage: int, keeps: bool, forwards: int, reduces: int
) -> None:
    """Of two micro-batches: how often weights come together, and gradients are reduced.

    replicate takes half a millisecond for each pass of a block and fully_shard one, and four times
    that to reduce; both 1 ns per parameter besides.
    """
    fixed = {"replicate": 0.5e-3, "fully_shard": 1e-3}
    often = {"forward": 1, "backward": 1, "reduce": 4}
    plan = ONE.model_copy(
        update={"dp": 2, "zero_stage": zero_stage, "reshard_after_forward": not keeps}
    )

    def dp_comm(scale: float) -> float:
        points = [
            timed(scale * (fixed[wrapper] * often[side] + 1e-9 * size),
                  wrapper=wrapper, direction=side, parameters=size)
            for wrapper in fixed for side in often for size in (1e3, 1e6)
        ]  # fmt: skip
        return parts(estimate(calibration(wrapper=points), plan))["dp_comm"]

    # 4 layers of attention, MLP and norms; word table and positions, twice for the two ends.
    blocks, parameters = 4 + 2, 4 * (12 * 1024**2 + 4 * 1024) + 2 * (8192 + 512) * 1024
    own = fixed["fully_shard" if zero_stage else "replicate"]
    passes = forwards + 2
    expected = own * blocks * (passes + 4 * reduces) + 1e-9 * parameters * (passes + reduces)
    assert dp_comm(2.0) - dp_comm(1.0) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("plan", "extra_s"),
    [({}, 0.0), ({"tp": 2}, 0.25), ({"tp": 2, "sequence_parallel": True}, 0.5)],
)
def test_the_host_takes_longer_where_tensors_are_split(
    plan: dict[str, Any], extra_s: float
) -> None:
    """A quarter of a second more for each split layer, half of one where the sequence is too."""
    points = [
        timed(seconds, runtime=runtime, direction=side)
        for runtime, seconds in (
            ("layer", 1.0), ("tensor_parallel", 0.25), ("sequence_parallel", 0.5)
        )
        for side in ("forward", "backward")
    ]  # fmt: skip
    found = parts(estimate(calibration("cpu", host=points), ONE.model_copy(update=plan)))
    # 4 micro-batches of 4 layers; the kernels take milliseconds.
    for side in ("forward", "backward"):
        assert found[side] == pytest.approx(16 * (1.0 + extra_s), rel=2e-2)


def test_a_measured_rate_of_attention_is_that_of_the_estimate() -> None:
    """8 sequences through 4 layers: half of two products over the square, 2.5 times backward."""

    def points(rate: float) -> list[dict[str, Any]]:
        return [
            timed(1.0, precision="bf16", direction=side, head_dim=64, seq_length=512, flop=rate)
            for side in ("forward", "backward")
        ]

    slow, fast = (parts(estimate(calibration(attention=points(r)))) for r in (1e11, 2e11))
    saved_s = 8 * 4 * 2 * 512**2 * 1024 * (1 / 1e11 - 1 / 2e11)
    assert slow["forward"] - fast["forward"] == pytest.approx(saved_s, rel=1e-9)
    assert slow["backward"] - fast["backward"] == pytest.approx(2.5 * saved_s, rel=1e-9)
    only_forward = parts(estimate(calibration(attention=points(1e11)[:1])))
    assert only_forward == parts(estimate(None))  # half of a measurement measures nothing


def test_a_measured_pass_takes_its_bytes_at_that_rate() -> None:
    """Norms, two of each of 4 layers: 4 bytes per element forward, 10 backward (eager torch)."""

    def points(rate: float) -> list[dict[str, Any]]:
        return [
            timed(1.0, precision="bf16", kernel="layernorm", direction=side, bytes=rate)
            for side in ("forward", "backward")
        ]

    slow, fast = (parts(estimate(calibration(passes=points(r)))) for r in (1e8, 2e8))
    saved_s = 4 * 2 * 8 * 512 * 1024 * (1 / 1e8 - 1 / 2e8)
    assert slow["forward"] - fast["forward"] == pytest.approx(4 * saved_s, rel=1e-9)
    assert slow["backward"] - fast["backward"] == pytest.approx(10 * saved_s, rel=1e-9)


def test_kernels_lose_what_was_measured_beside_collectives() -> None:
    """ZeRO-3 in 2 micro-batches: of what hides, a share of its seconds comes back."""
    plan = ONE.model_copy(update={"dp": 2, "zero_stage": 3})

    def dp_comm(share: float) -> float:
        points = [timed(share, ranks=2, collective_s=1.0)]
        return parts(estimate(calibration(contention=points), plan))["dp_comm"]

    none, some, more = map(dp_comm, (0.0, 0.25, 0.5))
    assert some - none > 0
    assert more - none == pytest.approx(2 * (some - none), rel=1e-9)
