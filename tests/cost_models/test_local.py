"""The machine this runs on, as a cluster: its GPUs as the driver prints them, else its cores."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cost_models.catalog import hardware, local


@pytest.fixture
def _fresh_local() -> None:
    local.cluster.cache_clear()


@pytest.mark.usefixtures("_fresh_local")
class TestLocal:
    def test_without_a_gpu_the_cores_are_measured(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(local, "NVIDIA_SMI", ("no-such-program",))
        spec = hardware.cluster("local")
        core = spec.groups[0].accelerator
        assert core.id == "cpu-core"
        assert core.confidence == "low"
        assert core.peak_bf16_flop_per_s is not None
        assert 1e8 < core.peak_bf16_flop_per_s < 1e14
        assert core.memory_bytes > (spec.reserved_bytes_per_accelerator or 0.0)
        assert spec.failures_per_1000_node_days is None

    @pytest.mark.parametrize(
        ("printed", "accelerator", "count"),
        [
            ("NVIDIA H100 80GB HBM3, 81559\n" * 8, "h100-sxm-80gb", 8),
            ("NVIDIA A100-SXM4-80GB, 81920\n" * 3 + "Tesla K80, 11441\n", "a100-sxm-80gb", 3),
            ("GRID K1, 4096\n", "cpu-core", None),
            ("NVIDIA H100 NVL, 95830\n" * 3, "cpu-core", None),  # pairs of three
            ("NVIDIA GB10, [N/A]\n", "gb10", 1),  # its memory is the host's
            ("NVIDIA A100-SXM4-80GB, unknown\n", "cpu-core", None),
            ("No devices were found\n", "cpu-core", None),
            ("", "cpu-core", None),
        ],
    )
    def test_gpus_are_matched_by_what_the_driver_calls_them(
        self, monkeypatch: pytest.MonkeyPatch, printed: str, accelerator: str, count: int | None
    ) -> None:
        monkeypatch.setattr(local, "NVIDIA_SMI", ("printf", "%s", printed))
        group = hardware.local_cluster().groups[0]
        assert group.accelerator.id == accelerator
        assert count is None or group.accelerators_per_node == count

    def test_memory_is_what_the_driver_reports(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(local, "NVIDIA_SMI", ("echo", "NVIDIA H200, 140000"))
        monkeypatch.setattr(local, "_memory_bytes", lambda: 3e11)
        group = hardware.local_cluster().groups[0]
        assert group.accelerator.memory_bytes == 140_000 * 2**20
        assert group.host_memory_bytes == 3e11
        monkeypatch.setattr(local, "NVIDIA_SMI", ("echo", "NVIDIA GB10, [N/A]"))
        local.cluster.cache_clear()
        assert hardware.local_cluster().groups[0].accelerator == hardware.accelerator("gb10")

    def test_links_are_those_of_the_matrix(self, monkeypatch: pytest.MonkeyPatch) -> None:
        matrix = "GPU0 GPU1\nGPU0 X NV4\nGPU1 NV4 X\n"
        monkeypatch.setattr(
            local, "NVIDIA_SMI", ("printf", "%s", "NVIDIA GeForce RTX 3090, 24576\n" * 2)
        )
        for printed, name in ((matrix, "nvlink"), ("no matrix", "pcie")):
            monkeypatch.setattr(local, "NVIDIA_SMI_TOPOLOGY", ("printf", "%s", printed))
            local.cluster.cache_clear()
            assert hardware.local_cluster().groups[0].network[0].name == name

    def test_a_machine_that_hangs_or_lacks_proc_still_answers(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        late = ("sh", "-c", "sleep 5; echo NVIDIA H200, 140000")
        monkeypatch.setattr(local, "NVIDIA_SMI", late)
        monkeypatch.setattr(local, "NVIDIA_SMI_TIMEOUT_S", 0.05)
        monkeypatch.setattr(local, "Path", lambda _: Path("/nonexistent"))
        spec = hardware.local_cluster()
        assert spec.groups[0].host_memory_bytes == local.UNKNOWN_MEMORY_BYTES
        assert spec.groups[0].accelerator.id == "cpu-core"

    def test_an_answer_with_an_error_is_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        failing = ("sh", "-c", "echo NVIDIA H200, 140000; exit 3")
        monkeypatch.setattr(local, "NVIDIA_SMI", failing)
        assert hardware.local_cluster().groups[0].accelerator.id == "cpu-core"

    def test_so_many_gpus_as_asked_for_with_the_least_memory_of_any(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        printed = "NVIDIA H200, 140000\n\nNVIDIA H200, 130000\nNVIDIA H200, 140000\n"
        monkeypatch.setattr(local, "NVIDIA_SMI", ("printf", "%s", printed + "GRID K1, 1\n"))
        for processes in (1, 2, 3):
            spec = local.cluster(processes)
            assert (spec.name, spec.accelerators) == ("local", processes)
            assert spec.groups[0].nodes == 1
            assert spec.groups[0].accelerator.memory_bytes == 130_000 * 2**20
            assert spec.failures_per_1000_node_days is not None
        assert local.cluster().accelerators == 3
        with pytest.raises(ValueError, match="4 processes on the 3 GPUs"):
            local.cluster(4)

    @pytest.mark.parametrize(
        ("processes", "ranks", "share"), [(None, 4, 1.0), (1, 1, 1.0), (4, 4, 1.0), (8, 8, 0.5)]
    )
    def test_ranks_share_the_cores_the_copies_and_the_memory(
        self, monkeypatch: pytest.MonkeyPatch, processes: int | None, ranks: int, share: float
    ) -> None:
        """Four cores of 1 TFLOP/s, copies of 10 GB/s, 64 GB."""
        monkeypatch.setattr(local, "NVIDIA_SMI", ("no-such-program",))
        monkeypatch.setattr(local, "cpu_cores", lambda: 4)
        monkeypatch.setattr(local, "_matrix_flop_per_s", lambda: 4e12)
        monkeypatch.setattr(local, "_copy_bytes_per_s", lambda: 10e9)
        monkeypatch.setattr(local, "_memory_bytes", lambda: 64e9)
        spec = local.cluster(processes)
        (group,), core = spec.groups, spec.groups[0].accelerator
        assert (group.nodes, group.accelerators_per_node) == (1, ranks)
        for name in ("bf16", "fp16", "fp32"):
            assert core.peak_flop_per_s(name) == share * 1e12
        assert (core.memory_bytes, core.memory_bytes_per_s) == (64e9 / ranks, share * 10e9)
        assert group.host_memory_bytes == 64e9
        (loopback,) = group.network
        assert loopback.bandwidth_bytes_per_s == share * 2.5e9
        assert loopback.latency_s == 50e-6
        assert loopback.domain_accelerators is None
        assert spec.reserved_bytes_per_accelerator == 2**29
        assert spec.name == "local (CPU)"
        assert hardware.cluster("local", 1).accelerators == 4
        with pytest.raises(ValueError, match="local is one node, got 2"):
            hardware.cluster("local", 2)

    def test_cores_and_memory_are_those_of_the_system(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "meminfo").write_text("MemFree: 1 kB\nMemTotal:   2048 kB\nMemTotal: 3 kB\n")
        monkeypatch.setattr(local, "Path", lambda _: tmp_path / "meminfo")
        assert local._memory_bytes() == 2048 * 1024
        for own in ({3}, {1, 5, 7}):
            monkeypatch.setattr(os, "sched_getaffinity", lambda _, own=own: own, raising=False)
            assert local.cpu_cores() == len(own)
        monkeypatch.delattr(os, "sched_getaffinity")
        for counted, cores in ((6, 6), (None, 1)):
            monkeypatch.setattr(os, "cpu_count", lambda counted=counted: counted)
            assert local.cpu_cores() == cores

    def test_rates_are_work_over_the_best_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """768 x 768 x 768 products, and 32 MiB read and written, in 4, 2 and 8 s."""
        assert 1e-9 <= local._seconds(lambda: None) < 0.1
        for rate, work in ((local._matrix_flop_per_s, 768**3), (local._copy_bytes_per_s, 2**25)):
            took = iter([4.0, 2.0, 8.0])
            monkeypatch.setattr(local, "_seconds", lambda _, took=took: next(took))
            assert rate.__wrapped__() == work
