"""Files that a launch names are read with it; no others are."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner import emit
from planner.frameworks.sources import launch_at

HEAD = "CONFIG=zero2\ntorchrun train.py --deepspeed "


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    """So deep that no folder above it, in which names are looked for too, is someone else's."""
    folder = tmp_path / "in" / "these" / "folders"
    folder.mkdir(parents=True)
    return folder


def tree(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def found(script: Path) -> list[str]:
    texts, paths = launch_at([str(script)])
    assert [Path(path).read_text("utf-8") for path in paths] == list(texts.values())
    return list(texts)[1:]


@pytest.mark.parametrize(
    "word",
    [
        "configs/zero2.json",
        "./configs/zero2.json",
        '"configs/$CONFIG.json"',
        "$HOME/work/configs/zero2.json",
        "/home/somebody/repo/configs/zero2.json",
    ],
)
def test_a_configuration_is_found_from_the_folders_above(tmp_path: Path, word: str) -> None:
    tree(tmp_path, scripts__run_dot_sh=HEAD + word, configs__zero2_dot_json="{}")
    assert found(tmp_path / "scripts" / "run.sh") == ["zero2.json"]


def test_a_name_without_a_folder_is_found_among_the_configurations(tmp_path: Path) -> None:
    program = "import argparse, yaml, transformers\nyaml.safe_load(open(folder / 'model.yaml'))\n"
    tree(
        tmp_path,
        scripts__train_dot_py=program,
        config__model_dot_yaml="name: a\n",
        config__other_dot_yaml="name: b\n",
    )
    assert found(tmp_path / "scripts" / "train.py") == ["model.yaml"]
    tree(tmp_path, scripts__model_dot_yaml="name: c\n")
    assert found(tmp_path / "scripts" / "train.py") == ["model.yaml"]
    assert launch_at([str(tmp_path / "scripts" / "train.py")])[0]["model.yaml"] == "name: c\n"


def test_files_that_named_files_name_are_found_too(tmp_path: Path) -> None:
    tree(
        tmp_path,
        run_dot_sh='source env.sh\naccelerate launch --config_file "$ACCELERATE" train.py\n',
        env_dot_sh="ACCELERATE=configs/fsdp.yaml\n",
        configs__fsdp_dot_yaml="deepspeed_config_file: configs/ds.json\n",
        configs__ds_dot_json="{}",
        configs__other_dot_yaml="a: 1\n",
    )
    assert found(tmp_path / "run.sh") == ["env.sh", "fsdp.yaml", "ds.json"]


@pytest.mark.parametrize(
    ("call", "file"),
    [
        ("torchrun -m train --a 1", "train.py"),
        ("python -m train", "train.py"),
        ("python -m a.train", "a__train.py"),
    ],
)
def test_modules_that_are_started_are_found(tmp_path: Path, call: str, file: str) -> None:
    tree(tmp_path, run_dot_sh=f"{call}\n", **{file.replace(".", "_dot_"): "a = 1\n"})
    assert found(tmp_path / "run.sh") == ["train.py"]


def test_a_script_that_is_called_is_found_with_what_it_names(tmp_path: Path) -> None:
    tree(
        tmp_path,
        scripts__launch_dot_sh='R="${R:-/workspace/repo}"\nTP=4 bash "$R/scripts/train.sh" a=1\n',
        scripts__train_dot_sh=HEAD + "conf/ds.json",
        scripts__conf__ds_dot_json="{}",
    )
    assert found(tmp_path / "scripts" / "launch.sh") == ["train.sh", "ds.json"]


# Those that start a script of the framework by a job of their own.
@pytest.mark.parametrize("launcher", ["slurm", "kubernetes", "jobset", "trainjob", "skypilot"])
def test_a_job_that_is_written_here_is_read_with_what_it_starts(
    tmp_path: Path, launcher: str
) -> None:
    bundle = emit(
        model="llama-3.1-8b", cluster="2x8xh100-sxm", plan={"tp": 8}, launcher=launcher,
        training={"seq_length": 8192, "global_batch_size": 128},
    )  # fmt: skip
    for name, text in bundle.files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (job,) = (name for name in bundle.files if name != "launch.sh")
    assert "launch.sh" in found(tmp_path / job)


def test_only_files_of_the_repository_are_opened(tmp_path: Path) -> None:
    tree(tmp_path, secret__a_dot_json="{}", repository__run_dot_sh=HEAD + "../secret/a.json")
    tree(tmp_path, repository___dot_git__HEAD="", repository__b_dot_json="{}")
    (tmp_path / "repository" / "linked.json").symlink_to(tmp_path / "secret" / "a.json")
    script = tmp_path / "repository" / "run.sh"
    assert found(script) == []
    script.write_text(HEAD + "linked.json --config b.json")
    assert found(script) == ["b.json"]


@pytest.mark.parametrize(
    "word",
    [
        "$MODEL/config.json",
        "/models/llama/config.json",
        "missing.json",
        "x/missing.json",
        "${X}.json",
    ],
)
def test_a_file_that_only_shares_its_name_is_left_alone(tmp_path: Path, word: str) -> None:
    """The model's config.json lies in the model's folder, whatever lies beside the script."""
    tree(tmp_path, run_dot_sh=HEAD + word, config_dot_json="{}", other__config_dot_json="{}")
    assert found(tmp_path / "run.sh") == []


def test_what_is_no_text_or_too_large_is_left_out(tmp_path: Path) -> None:
    tree(tmp_path, run_dot_sh=HEAD + "a.json b.json c.json d.json", c_dot_json="{}")
    (tmp_path / "a.json").write_bytes(b"\0\xff")
    (tmp_path / "b.json").write_bytes(b"x" * (1 << 20))
    (tmp_path / "d.json").mkdir()
    assert found(tmp_path / "run.sh") == ["c.json"]


def test_the_shapes_of_a_model_that_is_a_folder(tmp_path: Path) -> None:
    script = "torchrun t.py --tokenizer-model ./out --model_name_or_path ./small/base --out ./out\n"
    tree(tmp_path, run_dot_sh=script, small__base__config_dot_json="{}", out__config_dot_json="[]")
    assert launch_at([str(tmp_path / "run.sh")])[0]["config.json"] == "{}"


def test_the_folder_of_the_launch_may_be_the_model(tmp_path: Path) -> None:
    """Of a folder above only where the launch says so."""
    script = 'HERE="${BASH_SOURCE[0]%/*}"\n[ -d "$HERE" ] || HERE=.\n'
    script += 'torchrun t.py --model_name_or_path "$HERE"\n'
    tree(tmp_path, scripts__run_dot_sh=script, config_dot_json="{}")
    assert found(tmp_path / "scripts" / "run.sh") == []
    tree(tmp_path, scripts__config_dot_json="{}")
    assert found(tmp_path / "scripts" / "run.sh") == ["config.json"]


def test_a_python_file_is_read_where_the_script_does_not_suffice(tmp_path: Path) -> None:
    """Megatron-LM's options say all of a launch; a program of one's own says what it trains."""
    tree(tmp_path, run_dot_sh="torchrun steps/own.py 3\n", steps__own_dot_py="import torch\n")
    assert found(tmp_path / "run.sh") == ["own.py"]
    script = "torchrun pretrain_gpt.py --num-layers 2 --micro-batch-size 1\n"
    tree(tmp_path, run_dot_sh=script, pretrain_gpt_dot_py="import megatron\n")
    assert found(tmp_path / "run.sh") == []
    tree(tmp_path, run_dot_sh="torchrun -m torchtitan.train --module mine --config m\n")
    tree(tmp_path, mine_dot_py="def m(): pass\n")
    assert "mine.py" in found(tmp_path / "run.sh")


def test_a_configuration_of_another_place_is_found_by_a_name_of_its_own(tmp_path: Path) -> None:
    """Kept in the repository's folder of configurations; names that many files have are not."""
    tree(
        tmp_path,
        scripts__run_dot_sh="torchrun sft.py --config /d/config32b-qwen2.5.yaml --a /b/c.yaml",
        config__c_dot_yaml="{}",
    )
    (tmp_path / "config" / "config32b-qwen2.5.yaml").write_text("{}", encoding="utf-8")
    assert found(tmp_path / "scripts" / "run.sh") == ["config32b-qwen2.5.yaml"]
