"""Clusters read from what programs print: real outputs, alone and together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.cli import run
from planner.documents.problems import RequestError
from planner.inputs.machines.outputs import read_output
from planner.inputs.machines.reader import MachineAnswer, read_machine
from planner.inputs.requests.parser import parse_cluster

FOLDER = Path("tests/fixtures/machines")


def _read(*names: str, **texts: str) -> MachineAnswer:
    files = {name: (FOLDER / name).read_text(encoding="utf-8") for name in names}
    answer = read_machine({"files": files | texts, "name": "lab"})
    assert parse_cluster(answer.cluster).name == "lab"  # a request takes it as it is
    return answer


@pytest.mark.parametrize(
    ("name", "accelerator", "nodes", "per_node", "host_gib"),
    [
        ("smi_rtx_5090.txt", "rtx-5090", 1, 1, None),
        ("smi_q_rtx_5090.txt", "rtx-5090", 1, 1, None),
        ("scontrol_alpine.txt", "h200-sxm-141gb", 2, 4, 1509.8),  # the two of A100 are fewer
        ("scontrol_b200.txt", "b200-sxm-180gb", 1, 8, 1996.0),
        ("sinfo_m3.txt", "v100-sxm2-32gb", 4, 3, None),
        ("sinfo_ceci.txt", "rtx-pro-6000-server", 3, 4, None),
        ("kubectl_t4.json", "t4", 1, 1, 29.4),
        ("lspci_3090_pair.txt", "rtx-3090", 1, 2, None),
        ("held_out/smi_q_pro_6000.txt", "rtx-pro-6000-server", 1, 2, None),
        ("held_out/scontrol_l40.txt", "l40", 1, 8, 503.1),
        ("held_out/sinfo_shards.txt", "rtx-3090", 1, 6, None),
        ("held_out/sinfo_gb200.txt", "gb200-nvl72", 2, 4, 7.3),
        ("held_out/kubectl_h200.json", "h200-sxm-141gb", 1, 8, 1024.0),
    ],
)
def test_an_output_names_nodes_and_accelerators(
    name: str, accelerator: str, nodes: int, per_node: int, host_gib: float | None
) -> None:
    cluster = _read(name).cluster
    found = cluster["accelerator"]
    assert (found if isinstance(found, str) else found["id"]) == accelerator
    assert (cluster["nodes"], cluster["accelerators_per_node"]) == (nodes, per_node)
    if host_gib is None:
        assert "host_memory_bytes" not in cluster
    else:
        assert cluster["host_memory_bytes"] / 2**30 == pytest.approx(host_gib, abs=0.1)


def test_the_link_to_the_host_is_as_wide_as_printed() -> None:
    """Eight of sixteen lanes of PCIe 5.0, whose generation rests at 1."""
    cluster = _read("smi_q_rtx_5090.txt").cluster
    assert cluster["host_link_bytes_per_s"] == 8 * 3.938e9


def test_outputs_of_one_machine_say_more_together() -> None:
    answer = _read(
        "scontrol_b200.txt",
        "topo_hgx.txt",
        "held_out/ibstat_400.txt",
        **{"meminfo": "MemTotal:       2113512832 kB\nMemFree: 5 kB\n", "notes.md": "Our cluster."},
    )
    assert answer.unread == ("notes.md",)
    nvlink, network = answer.cluster["network"]
    # 18 links of 50 GB/s among eight; one port of 400 Gb/s that eight share.
    assert (nvlink["name"], nvlink["bandwidth_bytes_per_s"]) == ("nvlink", 900e9)
    assert (network["name"], network["bandwidth_bytes_per_s"]) == ("roce", 50e9 / 8)
    assert answer.cluster["host_memory_bytes"] == 2043912 * 2**20  # Slurm's, before the system's
    assert not any(line.startswith(("links", "network", "host")) for line in answer.assumed)
    assert any("18 NVLinks among 8" in line for line in answer.read)
    assert any("1 port, 400 Gb/s" in line for line in answer.read)


def test_nodes_are_those_of_so_many_accelerators_and_memory_the_systems() -> None:
    nodes = "NODELIST GRES\nbig[1-9] gpu:h100:8\nws[1-3] gpu:rtx:2\n"
    meminfo = "MemTotal:       263000000 kB\n"
    cluster = _read("held_out/smi_q_pro_6000.txt", nodes=nodes, meminfo=meminfo).cluster
    assert (cluster["nodes"], cluster["accelerators_per_node"]) == (3, 2)
    assert cluster["host_memory_bytes"] == 263_000_000 * 1024


def test_what_no_output_says_is_named_with_what_would_say_it() -> None:
    assumed = "\n".join(_read("sinfo_m3.txt").assumed)
    for part in ("2 x 4 H100 left out", "nvidia-smi topo -m", "ibstat", "/proc/meminfo"):
        assert part in assumed
    assumed = "\n".join(_read("smi_rtx_5090.txt").assumed)
    assert "1 node: no output lists nodes" in assumed
    assert "ibstat" not in assumed  # one node has no network to ask for


def test_ports_that_are_down_or_slower_are_not_the_network() -> None:
    seen = read_output((FOLDER / "ibstat_mixed.txt").read_text())
    assert seen is not None
    assert (seen.nics_gbit, seen.fabric) == ((100.0,), "infiniband")
    ports = (("Active", 400), ("Active", 25), ("Down", 400), ("Active", 400))
    seen = read_output(
        "".join(
            f"CA 'mlx5_{i}'\n\tCA type: MT4129\n\tPort 1:\n\t\tState: {state}\n"
            f"\t\tPhysical state: LinkUp\n\t\tRate: {rate}\n\t\tLink layer: InfiniBand\n"
            for i, (state, rate) in enumerate(ports)
        )
    )
    assert seen is not None
    assert seen.nics_gbit == (400.0, 400.0)


def test_memory_other_than_the_catalogs_is_the_drivers() -> None:
    row = "NVIDIA GeForce RTX 3080, 10240 MiB\n"
    accelerator: Any = _read(gpus=row * 2).cluster["accelerator"]
    assert (accelerator["id"], accelerator["memory_bytes"]) == ("rtx-3080-12gb", 10240 * 2**20)


def test_a_number_of_cards_that_no_typical_node_has_is_one_domain() -> None:
    cluster = _read(gpus="NVIDIA A40, 46068 MiB\n" * 10).cluster
    assert cluster["accelerators_per_node"] == 10
    assert parse_cluster(cluster).groups[0].network[0].domain_accelerators == 10
    with pytest.raises(RequestError, match="3 accelerators per node do not fit the nvlink domain"):
        read_machine({"files": {"gpus": "NVIDIA H100 NVL, 95830 MiB\n" * 3}})


def test_an_instance_of_a_provider_is_that_preset() -> None:
    text = (FOLDER / "kubectl_t4.json").read_text(encoding="utf-8")
    labelled = text.replace('"labels": {', '"labels": {"node.kubernetes.io/instance-type": "%s",')
    cluster = _read(nodes=labelled % "g4dn.xlarge").cluster
    assert cluster == {"name": "lab", "preset": "g4dn.xlarge", "nodes": 1}
    assert _read(nodes=labelled % "k3s").cluster["accelerator"] == "t4"


@pytest.mark.parametrize(
    ("document", "pointer", "code"),
    [
        ([], "", "wrong_type"),
        ({}, "/files", "missing"),
        ({"files": []}, "/files", "wrong_type"),
        ({"files": {"a/b": 3}}, "/files/a~1b", "wrong_type"),
        ({"files": {"a": ""}, "other": 1}, "/other", "unknown_field"),
        ({"files": {"a": "NVIDIA A40, 46068\n"}, "name": 3}, "/name", "wrong_type"),
        ({"files": {"a": "NVIDIA A40, 46068\n"}, "name": {}}, "/name", "wrong_type"),
        ({"files": {"a": "hello"}}, "/files", "no_accelerator"),
        ({"files": {"a": "{" * 100_000}}, "/files", "no_accelerator"),
        ({"files": {"a": '{"items": [3, {"metadata": 3}]}'}}, "/files", "no_accelerator"),
        ({"files": {"a": "NVIDIA Q7 Turbo, 46068\n"}}, "/files", "unknown_name"),
        ({"files": {"a": "NODELIST GRES\ng[1-999999999] gpu:h100:8\n"}}, "/files", "out_of_range"),
    ],
)
def test_what_cannot_be_read_is_refused_in_its_place(
    document: Any, pointer: str, code: str
) -> None:
    with pytest.raises(RequestError) as refused:
        read_machine(document)
    problem = refused.value.problems[0]
    assert (problem.pointer, problem.code) == (pointer, code)


def test_the_command_prints_a_part_of_a_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "notes.md"
    other.write_text("Our cluster.")
    files = [str(FOLDER / "scontrol_alpine.txt"), str(other)]
    assert run(["cluster", "read", *files, "--name", "alpine"]) == 0
    printed = capsys.readouterr()
    assert printed.err == "not understood: notes.md\n"
    assert "# assumed: 2 x 3 a100-40gb left out" in printed.out
    request = yaml.safe_load(printed.out)
    assert parse_cluster(request["cluster"]).name == "alpine"
    saved = tmp_path / "alpine.yaml"
    saved.write_text(printed.out)
    asked = ["--model", "gpt2", "--seq-length", "1024", "--global-batch-size", "64", "--tp", "1"]
    assert run(["estimate", str(saved), *asked, "--pp", "1"]) == 0
    assert "2 x 4 H200" in capsys.readouterr().out
    assert run(["cluster", "read", str(other)]) == 2
    assert "none is an output of" in capsys.readouterr().err
