"""`planner learn` and `planner sites`: what is shown, what is kept, and what is refused."""

from __future__ import annotations

import io
import json
import os
import pty
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from planner.evidence.uncertainty import site_storage as storage
from planner.inputs.logs import stream
from tests.fixtures.commands import Planner
from tests.planner.inputs.logs.test_bad_logs import BLOCK, SCRIPT, step, steps
from tests.planner.learning.sites.runs import CLUSTER, LOGS, NAMES

EIGHT = str(LOGS / "megatron_gpt_8_nodes.log")
PLACE = ["--cluster", CLUSTER, "--site", "lab"]


def refused(found: tuple[int, str, str]) -> str:
    """What a refused command complains of; nothing is kept."""
    code, out, err = found
    assert (code, out) == (2, "")
    assert storage.names() == ()
    assert "Traceback" not in err
    return err


def written(path: Path, lines: list[str]) -> str:
    path.write_text("\n".join(lines))
    return str(path)


def test_shows_first_and_keeps_nothing(planner: Planner) -> None:
    code, out, _ = planner("learn", EIGHT, *PLACE)
    assert code == 0
    assert "tp 4 · pp 8 · dp 1" in out
    assert "1.618 s · 1.616 to 1.624 s · 160 steps used" in out
    assert "20 skipped or NaN iterations" in out
    assert "plan.attention_kernel: unfused assumed" in out
    assert "19.6 GiB max allocated" in out
    assert " GiB estimated · 17.0 % too low" in out
    assert out.endswith("Nothing is kept: --yes keeps it with site lab.\n")
    assert storage.names() == ()


def test_keeps_with_yes_and_once(planner: Planner) -> None:
    _, out, _ = planner("learn", EIGHT, *PLACE, "--yes")
    assert "Kept: site lab has 1 run now." in out
    _, out, _ = planner("learn", EIGHT, *PLACE, "--yes")
    assert "Nothing new: site lab has 1 run" in out
    assert len(storage.find("lab").runs) == 1


def test_a_renamed_log_counts_once(planner: Planner, tmp_path: Path) -> None:
    copy = tmp_path / "other.out"
    copy.write_bytes(Path(EIGHT).read_bytes())
    planner("learn", EIGHT, str(copy), *PLACE, "--yes")
    assert len(storage.find("lab").runs) == 1


def test_from_a_pipe(planner: Planner, monkeypatch: pytest.MonkeyPatch) -> None:
    piped = io.TextIOWrapper(io.BytesIO(Path(EIGHT).read_bytes()))
    monkeypatch.setattr(sys, "stdin", piped)
    code, out, _ = planner("learn", "-", *PLACE, "--json", "--yes")
    document = json.loads(out)
    assert code == 0
    assert document["kept"]
    assert document["runs"][0]["run"]["file"] == "standard input"
    assert document["runs"][0]["run"]["request"]["plan"]["pp"] == 8


def test_several_and_what_they_teach(planner: Planner) -> None:
    logs = [str(LOGS / f"{name}.log") for name in NAMES]
    _, out, _ = planner("learn", *logs, *PLACE, "--yes")
    assert "left open in 6 of 6: plan.attention_kernel" in out
    _, out, _ = planner("sites")
    assert "lab" in out
    _, out, _ = planner("sites", "show", "lab")
    assert "learned: nothing certain yet" in out
    assert "median 3.2 % without the site, 1." in out
    assert "no run covers: expert kernels" in out
    _, out, _ = planner("sites", "show", "lab", "--json")
    document = json.loads(out)
    assert document["median_error_left_out"] < document["median_error_without"]
    first = document["runs"][0]["id"]
    assert planner("sites", "forget", "lab", first[:6])[0] == 0
    assert len(storage.find("lab").runs) == 5
    assert planner("sites", "forget", "lab")[0] == 0
    assert planner("sites")[1] == "no sites yet: `planner learn` or `planner calibrate` makes one\n"


def test_script_fills_what_the_log_leaves_open(planner: Planner, tmp_path: Path) -> None:
    bare = written(tmp_path / "bare.log", steps())
    said = refused(planner("learn", bare, *PLACE))
    assert "bare.log does not print all of its model" in said
    assert "(read: a step of " in said
    script = tmp_path / "run.sh"
    script.write_text(
        SCRIPT.format(layers=48, micro=1).replace("--fp16", "--fp16 --use-flash-attn")
    )
    code, out, _ = planner("learn", bare, "--script", str(script), *PLACE)
    assert code == 0
    assert "tp 4 · pp 8 · dp 1" in out
    assert "left open" not in out


def test_script_says_the_kernel_that_the_log_does_not(planner: Planner, tmp_path: Path) -> None:
    log = written(tmp_path / "train.log", [*BLOCK, *steps()])
    script = tmp_path / "run.sh"
    words = "--fp16 --attention-backend unfused --recompute-granularity full "
    words += "--recompute-method uniform --recompute-num-layers 1"
    script.write_text(SCRIPT.format(layers=48, micro=1).replace("--fp16", words))
    _, out, _ = planner("learn", log, "--script", str(script), *PLACE, "--json")
    (one,) = json.loads(out)["runs"]
    assert one["run"]["request"]["plan"]["attention_kernel"] == "unfused"
    assert one["run"]["left_open"] == []


@pytest.mark.parametrize(
    ("layers", "micro", "words"),
    [
        (40, 1, "another model: they say model.num_layers 40, the log 48"),
        (48, 2, "another run: they say plan.micro_batch_size 2, the log 1"),
    ],
)
def test_script_of_another_run(
    planner: Planner, tmp_path: Path, layers: int, micro: int, words: str
) -> None:
    script = tmp_path / "run.sh"
    script.write_text(SCRIPT.format(layers=layers, micro=micro))
    assert words in refused(planner("learn", EIGHT, "--script", str(script), *PLACE))


def test_script_that_says_something_else_in_passing(planner: Planner, tmp_path: Path) -> None:
    """Recompute is not what makes a run, yet both say it, and differently."""
    script = tmp_path / "run.sh"
    words = "--fp16 --recompute-granularity selective"
    script.write_text(SCRIPT.format(layers=48, micro=1).replace("--fp16", words))
    complaint = refused(planner("learn", EIGHT, "--script", str(script), *PLACE))
    assert "they say plan.recompute selective, the log full" in complaint


def test_model_of_a_log_that_prints_its_config(planner: Planner) -> None:
    """It calls itself gpt2 and has 40 layers; the Trainer trains with torch's kernels."""
    log = str(LOGS / "trainer_gpt_4_nodes.log")
    assert "leaves open training.seq_length: give" in refused(planner("learn", log, *PLACE))
    words = ["--set", "training.seq_length=1024", "--json"]
    _, out, _ = planner("learn", log, *words, *PLACE)
    (one,) = json.loads(out)["runs"]
    request = one["run"]["request"]
    assert (request["model"]["num_layers"], request["model"]["hidden_size"]) == (40, 7168)
    # It offloaded to the host, which it does not print.
    slow, large = one["doubts"]
    assert slow.startswith("takes 4.3 times the estimate")
    assert large.startswith("is predicted not to fit")
    assert (request["plan"]["runtime"], request["plan"]["zero_stage"]) == ("torch", 3)


def test_experts_of_a_printed_config(planner: Planner, tmp_path: Path) -> None:
    """What has fields of its own is read too: a mixture of experts is no dense model."""
    text = (LOGS / "trainer_gpt_4_nodes.log").read_text().splitlines()
    first = next(i for i, line in enumerate(text) if "Model config " in line)
    last = next(i for i in range(first, len(text)) if text[i].strip() == "}")
    config = {
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 1024,
        "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 8,
        "intermediate_size": 3584, "num_local_experts": 8, "num_experts_per_tok": 2,
        "vocab_size": 32000, "max_position_embeddings": 4096,
    }  # fmt: skip
    printed = json.dumps(config, indent=2).splitlines()
    kept_lines = [line for line in text[last + 1 :] if "Overriding" not in line]
    head = text[first].replace("GPT2Config", "MixtralConfig")
    log = written(tmp_path / "moe.log", [*text[:first], head, *printed[1:], *kept_lines])
    words = ["--set", "training.seq_length=1024", "--json"]
    code, out, err = planner("learn", log, *words, *PLACE)
    assert code == 0, err
    model = json.loads(out)["runs"][0]["run"]["request"]["model"]
    assert (model["num_layers"], model["moe"]["num_experts"]) == (8, 8)


def test_model_and_settings_in_place_of_a_script(planner: Planner) -> None:
    log = str(LOGS / "mlperf_nvidia_gpt3.log")
    place = ["--cluster", "64x8xh100-sxm", "--site", "lab"]
    complaint = refused(planner("learn", log, *place))
    assert "leaves open training.precision, plan.tp, plan.pp" in complaint
    assert "plan.recompute, plan.runtime: give" in complaint
    said = {
        "training.precision": "fp8", "plan.tp": "4", "plan.pp": "8", "plan.vpp": "6",
        "plan.micro_batch_size": "2", "plan.zero_stage": "1", "plan.recompute": "none",
        "plan.runtime": "megatron", "plan.sequence_parallel": "true",
    }  # fmt: skip
    words = [word for path, value in said.items() for word in ("--set", f"{path}={value}")]
    code, out, _ = planner("learn", log, *words, *place)
    assert code == 0
    assert "gpt3-175b" in out
    assert "253 steps used" in out
    assert "fp8" in out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--set", "plan.pp=4"], "plan.pp is set to 4, but megatron_gpt_8_nodes.log line"),
        (["--set", "plan.ppp=4"], "did you mean"),
        (["--set", "pp=4"], "must be such as plan.recompute=full"),
        (["--set", "plan.attention_kernel=fast"], "/plan/attention_kernel"),
        (["--model", "llama-3.1-8b"], "llama-3.1-8b has num_layers 32"),
        (["--model", "lama"], "no model 'lama'"),
        (["--script", "none.sh"], "cannot read 'none.sh'"),
    ],
)
def test_what_is_said_beside_the_log(planner: Planner, words: list[str], complaint: str) -> None:
    assert complaint in refused(planner("learn", EIGHT, *words, *PLACE))


@pytest.mark.parametrize(
    ("cluster", "complaint"),
    [
        ("2x4xv100", "ran on 32 accelerators, the cluster has 8"),
        ("3x24xv100", "no whole number of nodes of 24"),
        ("nowhere", "--cluster: "),
    ],
)
def test_cluster_that_is_not_the_run_s(planner: Planner, cluster: str, complaint: str) -> None:
    found = planner("learn", EIGHT, "--cluster", cluster, "--site", "lab")
    assert complaint in refused(found)


def test_another_accelerator_than_the_log_names(planner: Planner) -> None:
    log = str(LOGS / "mlperf_nvidia_gpt3.log")
    complaint = refused(planner("learn", log, "--cluster", "64x8xb200", "--site", "lab"))
    assert "H100-SXM5-80GB (h100-sxm-80gb), the cluster has b200" in complaint


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ([], "bad.log is empty"),
        (["Dear reader,", "a letter."], "no training log of a code base known here"),
        ([*BLOCK, *steps(), *BLOCK, *steps()], "a second run, or the same one resumed"),
        ([*BLOCK, *steps(20), *[step(n) for n in range(11, 31)]], "step 11 after step 20"),
        (
            [*BLOCK, *steps(10), *[step(n, batch=8) for n in range(11, 30)]],
            "the batch is 4 at line",
        ),
        ([*BLOCK, *steps(10), step(11, loss="nan")], "the loss is"),
        ([*BLOCK, *steps(ms=5e-5)], "is it in another unit?"),
        ([*BLOCK, *steps(1)], "at least 2 are needed"),
        ([*BLOCK, "x" * (2**20 + 1)], "a line of more than 1 MiB"),
    ],
)
def test_bad_logs(planner: Planner, tmp_path: Path, lines: list[str], complaint: str) -> None:
    log = written(tmp_path / "bad.log", lines)
    assert complaint in refused(planner("learn", log, *PLACE, "--yes"))


def test_times_in_seconds_are_read_as_such(planner: Planner, tmp_path: Path) -> None:
    lines = [line.replace("(ms)", "(s)") for line in steps(ms=0.5)]
    log = written(tmp_path / "s.log", [*BLOCK, *lines])
    assert "0.5 s · 0.5 to 0.5 s" in planner("learn", log, *PLACE)[1]


def test_binary_and_no_file(planner: Planner, tmp_path: Path) -> None:
    junk = tmp_path / "junk.log"
    junk.write_bytes(bytes(range(256)) * 40)
    assert "is no text" in refused(planner("learn", str(junk), *PLACE, "--yes"))
    assert "cannot read 'gone.log'" in refused(planner("learn", "gone.log", *PLACE))
    assert "is a folder" in refused(planner("learn", str(tmp_path), *PLACE))


def test_gigabyte(planner: Planner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MAX_BYTES", 20_000)
    log = written(tmp_path / "long.log", [*BLOCK, *steps(2000)])
    assert "give its beginning" in refused(planner("learn", log, *PLACE, "--yes"))


def test_one_bad_log_among_good_ones(planner: Planner, tmp_path: Path) -> None:
    bad = written(tmp_path / "bad.log", [*BLOCK, *steps(1)])
    assert "bad.log: 1 step in the log" in refused(planner("learn", EIGHT, bad, *PLACE, "--yes"))


def test_error_as_a_document(planner: Planner, tmp_path: Path) -> None:
    log = written(tmp_path / "bad.log", [])
    code, out, _ = planner("learn", log, *PLACE, "--json")
    assert code == 2
    (error,) = json.loads(out)["errors"]
    assert (error["pointer"], error["code"]) == ("/log", "empty")


def test_bad_site_name(planner: Planner) -> None:
    found = planner("learn", EIGHT, "--cluster", CLUSTER, "--site", "../lab", "--yes")
    assert "must be 1 to 64 of a-z" in refused(found)


def test_unknown_site_names_the_nearest(planner: Planner) -> None:
    planner("learn", EIGHT, *PLACE, "--yes")
    _, _, err = planner("sites", "show", "labs")
    assert "no site 'labs'; one of lab; did you mean lab?" in err


def table(tmp_path: Path, *rows: dict[str, Any]) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [",".join(columns)]
    lines += [",".join(str(row.get(name, "")) for name in columns) for row in rows]
    return written(tmp_path / "runs.csv", lines)


ROW: dict[str, Any] = {
    "id": "a", "gpu": "H100 SXM 80GB", "n_gpus": 8, "gpus_per_node": 8, "model": "llama-3.1-8b",
    "stack": "Megatron-LM", "seq_len": 8192, "global_batch": 64, "tp": 2, "pp": 1, "dp": 4,
    "micro_batch": 1, "precision": "bf16", "recompute": "none", "zero_stage": 1,
    "iteration_time_s": 6.0,
}  # fmt: skip


def test_table_with_the_columns_of_the_accuracy_table(planner: Planner, tmp_path: Path) -> None:
    rows = [ROW, ROW | {"id": "b", "micro_batch": "", "tp": ""}, ROW | {"id": "c", "gpu": "A100"}]
    place = ["--cluster", "2x8xh100-sxm", "--site", "lab"]
    code, out, _ = planner("learn", table(tmp_path, *rows), *place, "--yes")
    assert code == 0
    assert "not learned: b" in out
    assert "not learned: c ran on A100 (a100" in out
    (one,) = storage.find("lab").runs
    assert (one.file, one.step_s, one.code_base) == ("a", 6.0, "table")
    assert one.request["cluster"]["groups"][0]["nodes"] == 1


def test_table_of_which_nothing_can_be_learned(planner: Planner, tmp_path: Path) -> None:
    rows = table(tmp_path, ROW | {"gpu": "A100"})
    complaint = refused(planner("learn", rows, "--cluster", "8xh100-sxm", "--site", "lab"))
    assert "--cluster: a ran on A100" in complaint


@pytest.mark.slow
@pytest.mark.parametrize(("said", "count"), [(b"y\n", 1), (b"n\n", 0)])
def test_a_person_at_a_terminal_is_asked(tmp_path: Path, said: bytes, count: int) -> None:
    environment = os.environ | {"PLANNER_DATA_DIR": str(tmp_path), "COLUMNS": "80"}
    words = [sys.executable, "-m", "planner.cli", "learn", EIGHT, *PLACE]
    process, terminal = pty.fork()
    if not process:
        os.execve(sys.executable, words, environment)
    shown = b""
    with suppress(OSError):  # how a terminal ends
        while part := os.read(terminal, 4096):
            shown += part
            if shown.endswith(b"[y/N]: "):
                os.write(terminal, said)
    assert os.waitpid(process, 0)[1] == 0
    assert b"Keep this run with site lab? [y/N]:" in shown
    assert len(list(tmp_path.glob("sites/*.json"))) == count
