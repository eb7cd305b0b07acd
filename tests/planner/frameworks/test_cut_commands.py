"""Commands that end before they look it, and what else bash makes of the words of a launch."""

from __future__ import annotations

import pytest

from planner.answers.lint.findings import ReadAnswer
from planner.answers.lint.lint import read
from planner.documents.problems import RequestError
from planner.frameworks.bash import cut_commands, evaluate
from planner.frameworks.read_results import Unreadable
from planner.inputs.requests.parser import parse_cluster
from tests.fixtures.call_bound import bounded_work
from tests.fixtures.trainer_scripts import BATCH, LENGTH, MODEL

WORDS = f"{MODEL} {BATCH} {LENGTH}"
CUT = "the backslash is not the last of its line: the command ends there, without "
AXOLOTL = (
    "base_model: meta-llama/Llama-2-7b-hf\nsequence_len: 2048\nmicro_batch_size: 2\n"
    "datasets:\n  - path: x\n    type: alpaca\n"
)


def found(text: str, **files: str) -> ReadAnswer:
    return read({"run.sh": f"#!/bin/bash\n{text}\n", **files}, parse_cluster("1x8xh100-sxm"))


def arguments(text: str) -> list[str]:
    (call,) = evaluate({"run.sh": text}, "run.sh").launches
    return [one.text for one in call.arguments]


@pytest.mark.parametrize("end", ["\\  # why", "\\ ", "\\\t", "\\ # a \\", "\\    #"])
def test_a_command_that_is_cut_is_said_with_its_line(end: str) -> None:
    text = (
        f"# the launch\ntorchrun --nproc_per_node 8 train.py {WORDS} {end}\n  --optim sgd \\\n  -a"
    )
    answer = found(text)
    assert f"run.sh:3: {CUT}--optim" in answer.assumed
    whole = found(text.replace(end, "\\"))
    assert CUT not in str(whole.assumed)


@pytest.mark.parametrize("option", ["--lr=1e-4", "-x", "trainer.nnodes=2", "+a.b=1"])
def test_options_of_any_form_are_cut_off(option: str) -> None:
    assert [text for _, text in cut_commands(f"torchrun a.py \\ \n  {option} \\\n --b\n")] == [
        CUT + option
    ]


def test_it_is_the_first_reason_where_nothing_is_read() -> None:
    with pytest.raises(RequestError) as caught:
        found("own-training \\  # why\n  --x 1")
    (problem,) = caught.value.problems
    assert problem.detail.startswith(f"line 2: {CUT}--x; no launch of a framework")
    assert problem.pointer == "/files/run.sh"
    with pytest.raises(RequestError) as caught:
        found("own-training \\\n  --x 1")
    assert CUT not in str(caught.value)


def test_a_script_that_another_calls_is_said_by_its_own_lines() -> None:
    inner = f"\ntorchrun --nproc_per_node 8 train.py {WORDS} \\ \n  --optim sgd\n"
    assert f"train.sh:2: {CUT}--optim" in found("bash train.sh", **{"train.sh": inner}).assumed


@pytest.mark.parametrize(
    "text",
    [
        "torchrun a.py \\\n  --b 1\n",
        "torchrun a.py --c '\\\\' \\\n  --b 1\n",
        'torchrun a.py "a \\\\ "\n --b 1\n',
        "# torchrun a.py \\  # why\n#  --b 1\n",
        "# torchrun a.py \\ \n  --b 1\n",
        "torchrun a.py  # \\ \n  --b 1\n",
        "cp a\\ b c\n--b 1\n",
        "torchrun a.py \\ \nother --b 1\n",
        "torchrun a.py \\ \n\n  --b 1\n",
        "torchrun a.py \\",
    ],
)
def test_lines_that_go_on_or_end_as_they_look_say_nothing(text: str) -> None:
    assert list(cut_commands(text)) == []


@pytest.mark.parametrize(
    ("functions", "call"),
    [
        ('opts() { echo "--model_max_length $1"; }', "opts 2048"),
        ('opts() ( echo "--model_max_length" $2 )', "opts 1 2048"),
        ('opts() { n=$1; echo "--model_max_length $n"; }', "opts 2048"),
        ('opts() { printf "%s %s\\n" --model_max_length "$@"; }', "opts 2048"),
        ("each() { echo 2048; }\nopts() { :; echo --model_max_length $(each); }", "opts"),
        ("each() { echo --model_max_length $1; }\nopts() { each $2; true; }", "opts 1 2048"),
    ],
)
def test_options_that_a_function_prints_are_read(functions: str, call: str) -> None:
    words = f"{MODEL} {BATCH} --bf16 True"
    text = f"{functions}\ntorchrun --nproc_per_node 8 train.py {words} $({call})"
    assert found(text).request["training"]["seq_length"] == 2048


@pytest.mark.parametrize(
    "body",
    [
        "echo --n $1; touch x",
        "[ -n a ] && echo --n $1",
        "echo --n $1 | tail -1",
        "echo --n $1 > x",
        "if true; then echo --n $1; fi",
        "python print_options.py",
        "echo --n $UNKNOWN",
    ],
)
def test_a_function_that_does_more_is_not(body: str) -> None:
    script = f"opts() {{ {body}; }}\ntorchrun a.py --a $(opts 4) --b"
    assert arguments(script) == ["--a", "$(opts 4)", "--b"]


def test_a_function_prints_by_its_own_parameters_and_leaves_those_of_the_script() -> None:
    script = "opts() { n=9; echo $1; }\nset -- 5 6\nn=1\ntorchrun a.py $(opts 4) $1 $2 $n"
    assert arguments(script) == ["4", "5", "6", "1"]


@pytest.mark.parametrize("body", ["opts", "opts; opts", "echo $(opts)", "echo $(opts) $(opts)"])
def test_a_function_that_prints_itself_ends(body: str) -> None:
    with pytest.raises(Unreadable, match="nest more than"):
        arguments(f"opts() {{ {body}; }}\ntorchrun a.py $(opts)")


@pytest.mark.parametrize(
    "starter",
    [
        "nohup", "conda run -n x", "conda run --no-capture-output -n x", "micromamba run -n x",
        "time", "setsid nohup", "sudo -E", "numactl --cpunodebind=0", "timeout 3600", "poetry run",
        "pixi run", "exec", "nice -n 5", "",
    ],
)  # fmt: skip
def test_a_console_command_behind_another(starter: str) -> None:
    call = f"{starter} llamafactory-cli train --stage sft --finetuning_type full {MODEL} {BATCH}"
    answer = found(f"CUDA_VISIBLE_DEVICES=0,1 {call} --cutoff_len 512 > log 2>&1 &")
    assert answer.request["training"] == {"seq_length": 512, "global_batch_size": 64}
    assert "is a command of a package" not in str(answer.assumed)


@pytest.mark.parametrize("starter", ["", "conda run -n x ", "nohup "])
def test_axolotl_behind_another(starter: str) -> None:
    text = f"axolotl preprocess a.yaml\n{starter}axolotl train a.yaml --num-processes 4"
    answer = found(text, **{"a.yaml": AXOLOTL})
    assert (answer.framework, answer.request["plan"]["dp"]) == ("axolotl", 4)
    alone = found("axolotl preprocess a.yaml --num-processes 4", **{"a.yaml": AXOLOTL})
    assert alone.request["plan"]["dp"] == 8  # what only prepares starts nothing


@pytest.mark.parametrize(
    "prepares", ["axolotl.cli.preprocess a.yaml", "axolotl.cli.train a.yaml --prepare_ds_only"]
)
def test_a_call_that_only_prepares_is_not_the_training(prepares: str) -> None:
    first = f"python -m {prepares} --micro_batch_size 7"
    trains = "python -m axolotl.cli.train a.yaml"
    for text in (f"{first}\n{trains}", f"{trains}\n{first}"):
        plan = found(text, **{"a.yaml": AXOLOTL}).request["plan"]
        assert (plan.get("dp", 1), plan["micro_batch_size"]) == (1, 2)


def test_a_command_that_is_only_printed_starts_nothing() -> None:
    with pytest.raises(RequestError, match="no launch of a framework"):
        found(f"echo llamafactory-cli train --stage sft {MODEL} {BATCH} --cutoff_len 512")


@pytest.mark.parametrize(
    ("job", "count"),
    [
        ("--gres=gpu:4", 4),
        ("--gres=gpu:a100:2", 2),
        ("--gpus-per-node=3", 3),
        ("-N 1 --gpus=5", 5),
        ("--gres=gpu:4\nexport CUDA_VISIBLE_DEVICES=6,7", 2),
    ],
)
@pytest.mark.parametrize(
    "counts",
    [
        "A=(${CUDA_VISIBLE_DEVICES//,/ })",
        'IFS="," read -ra A <<< "$CUDA_VISIBLE_DEVICES"',
    ],
)
def test_accelerators_that_slurm_makes_visible_are_counted(
    job: str, count: int, counts: str
) -> None:
    text = f"#SBATCH {job}\n{counts}\ntorchrun --nproc_per_node ${{#A[@]}} train.py {WORDS}"
    assert found(text).request["plan"]["dp"] == count


@pytest.mark.parametrize("job", ["-N 2", "-N 2 --gpus=4", "--gres=gpu:65", "--mem=4G"])
def test_slurm_makes_none_visible_where_their_number_is_not_known(job: str) -> None:
    script = f"#SBATCH {job}\ntorchrun a.py --devices $CUDA_VISIBLE_DEVICES\n"
    assert arguments(script) == ["--devices", "$CUDA_VISIBLE_DEVICES"]
    few = script.replace(job, "--gres=gpu:3")
    assert arguments(few) == ["--devices", "0,1,2"]


@pytest.mark.parametrize("call", ["bash", "source", "EACH=2 bash", "sh"])
@pytest.mark.parametrize("path", ["inner/run.sh", "/repository/inner/run.sh"])
def test_a_script_calls_another_of_the_same_name(call: str, path: str) -> None:
    inner = f"torchrun --nproc_per_node ${{EACH:-2}} train.py {WORDS}\n"
    answer = found(f"{call} {path}", **{"inner/run.sh": inner})
    assert answer.request["plan"]["dp"] == 2


def test_a_script_of_the_same_name_that_is_not_given_is_asked_for() -> None:
    with pytest.raises(RequestError, match=r"hands on to run\.sh, which is not among the files"):
        found("bash inner/run.sh")


def test_functions_that_call_each_other_twice_end_at_a_bound() -> None:
    calls = "".join(f"f{i}() {{ f{i + 1}; f{i + 1}; }}\n" for i in range(30))
    text = f"{calls}f30() {{ :; }}\ntorchrun train.py $(f0)\n"
    with bounded_work(), pytest.raises(Unreadable, match="expand to more than"):
        evaluate({"run.sh": text}, "run.sh")


@pytest.mark.parametrize(
    "text",
    [
        "cat <<EOF\nUsage: run.sh \\ \n  --nodes N\nEOF\n",
        "echo 'Usage: run.sh \\ \n  --nodes N'\n",
        "A=\\\\ \nB=3\n",
    ],
)
def test_texts_that_only_look_like_commands_say_nothing(text: str) -> None:
    assert list(cut_commands(text)) == []
    assert list(cut_commands("<<a\n" * 30_000)) == []
