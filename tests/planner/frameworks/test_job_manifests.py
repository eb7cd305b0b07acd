"""Jobs of Kubernetes, SkyPilot and dstack: the scripts that stand for their manifests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner import emit
from planner.answers.lint.findings import ReadAnswer
from planner.answers.lint.lint import lint, read
from planner.frameworks.base import Bundle
from planner.frameworks.bash import ProgramCall, evaluate, slurm_variables
from planner.frameworks.bash_writer import one_script, parts
from planner.frameworks.job_manifests import scripts_of_jobs
from planner.frameworks.sources import launch_at
from planner.inputs.requests.parser import parse_cluster
from tests.fixtures.call_bound import bounded_work
from tests.fixtures.trainer_scripts import BATCH, LENGTH, MODEL

OPTIONS = f"{MODEL} {BATCH} {LENGTH}"
ACTOR = "actor_rollout_ref.actor."
VERL = [
    "python3", "-m", "verl.trainer.main_ppo", "data.max_prompt_length=1024",
    "data.max_response_length=3072", "actor_rollout_ref.model.path=Qwen/Qwen3-8B",
    f"{ACTOR}ppo_mini_batch_size=64", f"{ACTOR}ppo_micro_batch_size_per_gpu=4",
    "trainer.n_gpus_per_node=8", "trainer.nnodes=2",
]  # fmt: skip
SKY = """\
num_nodes: 2
resources:
  accelerators: {}
envs:
  MODEL: meta-llama/Llama-2-7b-hf
run: |
  torchrun --nnodes $SKYPILOT_NUM_NODES --nproc_per_node $SKYPILOT_NUM_GPUS_PER_NODE \\
    train.py --model_name_or_path $MODEL {}
"""
DSTACK = """\
type: task
nodes: 2
commands:
  - export EACH=4
  - torchrun --nnodes 2 --nproc_per_node $EACH train.py --model_name_or_path $MODEL {}
env:
  - MODEL=meta-llama/Llama-2-7b-hf
resources:
  gpu: {}
"""
REPLICAS = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
spec:
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      template:
        spec:
          containers:
          - &container
            name: pytorch
            command: [bash, -c, "accelerate launch train.py {}"]
            resources: {{limits: {{nvidia.com/gpu: 4}}}}
    Worker:
      replicas: {}
      template:
        spec:
          containers:
          - *container
"""


def job(*command: str, spec: str = "backoffLimit: 0", env: str = "[]", gpus: str = "8") -> str:
    return f"""\
apiVersion: v1
kind: Service
metadata: {{name: train}}
---
apiVersion: batch/v1
kind: Job
spec:
  {spec}
  template:
    spec:
      containers:
      - name: watch
        command: [watch]
      - name: main
        command: {json.dumps(command)}
        env: {env}
        resources: {{limits: {{nvidia.com/gpu: {gpus}}}}}
"""


def found(manifest: str, **files: str) -> ReadAnswer:
    return read({"job.yaml": manifest, **files}, parse_cluster("4x8xh100-sxm"))


def launched(manifest: str) -> ProgramCall:
    """The only call of a manifest's script."""
    (call,) = evaluate(scripts_of_jobs({"job.yaml": manifest}), "job.yaml.sh").launches
    return call


def asked(manifest: str) -> tuple[int | None, int | None]:
    """Nodes and accelerators of each, as the readers know them."""
    numbers = slurm_variables(launched(manifest).slurm)
    return numbers.get("SLURM_NNODES"), numbers.get("SLURM_GPUS_PER_NODE")


def test_a_list_of_words_is_the_command() -> None:
    answer = found(job(*VERL))
    assert (answer.framework, answer.nodes, answer.accelerators_per_node) == ("accelerate", 2, 8)
    assert answer.request["training"] == {"seq_length": 4096, "global_batch_size": 64}
    assert answer.request["plan"]["micro_batch_size"] == 4


@pytest.mark.parametrize("shell", [("bash", "-c"), ("/bin/bash", "-lc"), ("sh", "-e", "-c")])
def test_the_text_of_a_shell_has_the_variables_of_its_container(shell: tuple[str, ...]) -> None:
    env = '[{name: NODES, value: "2"}, {name: EACH, value: "4"}, {name: KEY, valueFrom: {a: b}}]'
    text = f"torchrun --nnodes $NODES --nproc_per_node $EACH train.py {OPTIONS}"
    manifest = job(*shell, text, env=env)
    assert scripts_of_jobs({"job.yaml": manifest})["job.yaml.sh"].endswith(f"\n{text}\n")
    assert found(manifest).request["plan"]["dp"] == 8


@pytest.mark.parametrize(
    ("spec", "gpus", "nodes", "each"),
    [
        ("backoffLimit: 0", "4", 1, 4),
        ("completions: 3", "4", 3, 4),
        ("parallelism: 2", '"2"', 2, 2),
        ("completions: 16\n  parallelism: 4", "8", 4, 8),  # how many at a time
        ("replicas: 2", "8", 2, 8),
    ],
)
def test_pods_and_their_accelerators_are_the_job(
    spec: str, gpus: str, nodes: int, each: int
) -> None:
    assert asked(job("python", "train.py", spec=spec, gpus=gpus)) == (nodes, each)


@pytest.mark.parametrize("name", ["amd.com/gpu", "habana.ai/gaudi"])
def test_accelerators_of_others(name: str) -> None:
    text = job("accelerate", "launch", "train.py").replace("nvidia.com/gpu", name)
    assert "--gpus-per-node=8" in scripts_of_jobs({"job.yaml": text})["job.yaml.sh"]
    other = scripts_of_jobs({"job.yaml": text.replace(name, "example.com/gpu")})["job.yaml.sh"]
    assert "--gpus-per-node" not in other


def test_replicas_of_masters_and_workers_are_nodes() -> None:
    assert asked(REPLICAS.format(OPTIONS, 3)) == (4, 4)
    assert asked(REPLICAS.format(OPTIONS, 1)) == (2, 4)


def test_a_job_that_calls_a_script_beside_it() -> None:
    script = f"torchrun --nproc_per_node $EACH train.py {OPTIONS}\n"
    text = job("bash", "train.sh", env='[{name: EACH, value: "4"}]')
    assert found(text, **{"train.sh": script}).request["plan"]["dp"] == 4


@pytest.mark.parametrize(
    ("accelerators", "each"), [("A100:8", 8), ("'H100:4'", 4), ("{A100: 2}", 2), ("L4", 1)]
)
def test_skypilot_says_nodes_and_accelerators(accelerators: str, each: int) -> None:
    answer = found(SKY.format(accelerators, f"{BATCH} {LENGTH}"))
    assert (answer.nodes, answer.accelerators_per_node) == (2, each)
    assert answer.request["plan"]["dp"] == 2 * each
    assert answer.request["model"]["num_layers"] == 32


@pytest.mark.parametrize(
    ("gpu", "each"),
    [("A100:80GB:8", 8), ("24GB..:4", 4), ("80GB", 1), ("{name: [A100, H100], count: 2}", 2)],
)
def test_dstack_says_nodes_and_accelerators(gpu: str, each: int) -> None:
    text = DSTACK.format(f"{BATCH} {LENGTH}", gpu)
    assert asked(text) == (2, each)
    answer = found(text)  # as its command says
    assert (answer.request["plan"]["dp"], answer.request["model"]["num_layers"]) == (8, 32)


@pytest.mark.parametrize(
    "text",
    [
        "run: echo\nname: a\n",  # a key of many YAMLs
        "commands: [a, b]\ntype: service\n",
        "containers:\n- command: [python, train.py]\n",  # of no kind
        job().replace("command", "image"),  # only what the image runs
        "apiVersion: v1\nkind: Job\ncontainers: 3\n",
        "run: [a]\nnum_nodes: 2\n",
        "run: a\nnum_nodes: 2\n  b: [\n",  # no YAML
        "",
    ],
)
def test_what_is_no_job_stays(text: str) -> None:
    assert scripts_of_jobs({"a.yaml": text}) == {"a.yaml": text}


def test_only_a_yaml_is_a_manifest_and_order_is_kept() -> None:
    text = job(*VERL)
    files = {"a.sh": text, "b.yml": text, "c.json": "{}", "d.yaml": text, "d.yaml.sh": "own"}
    scripts = scripts_of_jobs(files)
    assert list(scripts) == ["a.sh", "b.yml.sh", "c.json", "d.yaml", "d.yaml.sh"]
    assert (scripts["a.sh"], scripts["d.yaml"], scripts["d.yaml.sh"]) == (text, text, "own")


def test_words_that_need_quotes_are_words_alone(tmp_path: Path) -> None:
    """Whatever they hold, they end no word and no line, and nothing of them runs."""
    hurt = tmp_path / "hurt"
    nasty = [f"$(touch {hurt})", "a b; c", "it's", f"`touch {hurt}`", "line\nend", "#SBATCH -N 9"]
    env = f"[{{name: A, value: {json.dumps(nasty[0])}}}, {{name: 'B; touch {hurt}', value: x}}]"
    text = job("torchrun", "train.py", *nasty, env=env)
    script = scripts_of_jobs({"job.yaml": text})["job.yaml.sh"]
    call = launched(text)
    assert [one.text for one in (*call.before, call.program)] == ["torchrun", "train.py"]
    assert [one.text for one in call.arguments] == nasty
    assert call.environment == {"A": nasty[0]}
    assert "B; touch" not in script
    path = tmp_path / "job.yaml"
    path.write_text(text, encoding="utf-8")
    launch_at([str(path)])
    assert not hurt.exists()


BOMB = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30))
PART = "apiVersion: v1\nkind: Job\ncontainers:\n- command: [python, train.py]\n"


@pytest.mark.parametrize(
    "more",
    [
        f"a0: &a0 [x]\n{BOMB}",
        "a: " + "[" * 9_000 + "]" * 9_000,
        "a: " + "{a: " * 9_000 + "}" * 9_000,
        "? [a, b]\n: c\n",
        "a: &a [*a]\n",
        f"a: {'9' * 5_000}\n",
        f"# {'x' * (1 << 16)}\n",
    ],
)
def test_what_asks_for_unbounded_work_stays(more: str) -> None:
    """The job itself would be read: what is beside it is in the way."""
    assert "a.yaml.sh" in scripts_of_jobs({"a.yaml": PART})
    assert list(scripts_of_jobs({"a.yaml": PART + more})) == ["a.yaml"]


def test_keys_and_values_that_are_no_text() -> None:
    text = (
        "apiVersion: v1\nkind: Job\n1: 2\ntrue: {3: 4}\n"
        "containers:\n- 7\n-\n- command: [python, train.py, 1]\n"
        "  env: {1: 2, A-B: x, KEPT: 3, GONE: [1]}\n  resources: {limits: [1], requests: x}\n"
    )
    script = scripts_of_jobs({"a.yaml": text})["a.yaml.sh"]
    assert script == "#!/bin/bash\n#SBATCH --nodes=1\nexport KEPT=3\npython train.py 1\n"


@pytest.mark.parametrize("replicas", ["9999999", "9" * 39, "-3", "1.5", "0", "x", "[2]"])
def test_what_is_no_number_of_replicas_is_one(replicas: str) -> None:
    """A number beyond six digits is no cluster's; the master is the other node."""
    assert asked(REPLICAS.format(OPTIONS, replicas)) == (2, 4)


@pytest.mark.parametrize("launcher", ["kubernetes", "jobset", "trainjob", "skypilot"])
def test_a_bundle_written_here_is_read_as_it_was_planned(launcher: str) -> None:
    """Its launch script stays as it is, and with both files the plan is that of the bundle."""
    bundle = emit(
        model="llama-3.1-8b", cluster="2x8xh100-sxm", plan={"tp": 8}, launcher=launcher,
        training={"seq_length": 8192, "global_batch_size": 128},
    )  # fmt: skip
    assert scripts_of_jobs(bundle.files)["launch.sh"] == bundle.files["launch.sh"]
    answer = read(dict(bundle.files), parse_cluster("2x8xh100-sxm"))
    assert (answer.nodes, answer.request["plan"]["tp"], answer.request["plan"]["dp"]) == (2, 8, 2)


def test_one_script_with_a_job_in_it_stays() -> None:
    files = {"run.sh": "echo\n", "job.yaml": f"a: 1\n---\n{PART}---\nb: 1\n"}
    assert "job.yaml.sh" in scripts_of_jobs(files)
    text = one_script(Bundle(files=files, main="run.sh", framework="a", versions="1", flags=()))
    assert parts(text)
    assert scripts_of_jobs({"launch.yaml": text}) == {"launch.yaml": text}


def test_a_variable_in_a_list_of_words_is_the_containers() -> None:
    words = ("torchrun", "--nproc_per_node=$(N)", "train.py", "--name", "a b$(N)'c")
    text = scripts_of_jobs({"a.yaml": job(*words, env='[{name: N, value: "2"}]')})["a.yaml.sh"]
    (call,) = evaluate({"a.yaml.sh": text}, "a.yaml.sh").launches
    assert [word.text for word in call.before] == ["torchrun", "--nproc_per_node=2"]
    assert [word.text for word in call.arguments] == ["--name", "a b2'c"]


def test_containers_of_one_pod_are_one_node() -> None:
    both = """\
apiVersion: v1
kind: Pod
spec:
  containers:
  - command: [torchrun, a.py]
    resources: {limits: {nvidia.com/gpu: 4}}
  - command: [torchrun, b.py]
    resources: {limits: {nvidia.com/gpu: 4}}
"""
    assert asked(both) == (1, 4)


@pytest.mark.parametrize("accelerators", ["{A100:8, H100:8}", "[A100:8, H100:8]", "{A100: 8}"])
def test_a_choice_of_accelerators_says_how_many(accelerators: str) -> None:
    text = f"resources:\n  accelerators: {accelerators}\nnum_nodes: 2\nrun: torchrun train.py\n"
    assert asked(text) == (2, 8)


@pytest.mark.parametrize(
    "text", [" " * 65_000 + "x", " \n" * 30_000, "- " * 30_000, "run: \ud800\n"]
)
def test_what_only_looks_like_a_manifest_costs_no_time(text: str) -> None:
    with bounded_work():
        assert scripts_of_jobs({"a.yaml": text}) == {"a.yaml": text}


def test_a_job_set_multiplies_its_replicas() -> None:
    text = """\
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
spec:
  replicatedJobs:
  - replicas: 4
    template:
      spec:
        completions: 2
        template:
          spec:
            containers:
            - command: [torchrun, train.py]
              resources: {limits: {nvidia.com/gpu: 8}}
"""
    assert asked(text) == (8, 8)


def test_workers_of_mpi_wait_for_what_its_launcher_starts() -> None:
    text = """\
apiVersion: v1
kind: Pod
spec:
  containers:
  - command: [etcd, --x]
---
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
spec:
  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      template: {spec: {containers: [{command: [mpirun, -np, "16", python, train.py]}]}}
    Worker:
      replicas: 2
      template:
        spec:
          containers:
          - command: [/usr/sbin/sshd, -De]
            resources: {limits: {nvidia.com/gpu: 8}}
"""
    script = scripts_of_jobs({"job.yaml": text})["job.yaml.sh"]
    assert "mpirun -np 16 python train.py" in script
    assert asked(text) == (2, 8)


def test_masters_and_workers_may_share_a_template() -> None:
    text = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
spec:
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      template: &pod
        spec:
          containers:
          - command: [torchrun, train.py]
            resources: {limits: {nvidia.com/gpu: 8}}
    Worker: {replicas: 3, template: *pod}
"""
    assert asked(text) == (4, 8)


def test_options_of_a_script_are_not_those_of_its_shell() -> None:
    assert launched_text("bash", "train.sh", "-c", "conf.yaml") == "bash train.sh -c conf.yaml"
    assert launched_text("bash", "-euc", "torchrun --n $(N) $(hostname)") == (
        "torchrun --n ${N} $(hostname)"
    )


def launched_text(*words: str) -> str:
    manifest = job(*words, env='[{name: N, value: "4"}]')
    return scripts_of_jobs({"job.yaml": manifest})["job.yaml.sh"].rstrip().rsplit("\n", 1)[-1]


def test_a_configuration_with_a_run_and_nodes_is_no_task() -> None:
    text = "base_model: Qwen/Qwen2.5-0.5B\nrun: exp1\nnum_nodes: 2\n"
    assert scripts_of_jobs({"config.yml": text}) == {"config.yml": text}


def test_lint_offers_no_file_that_is_not_there() -> None:
    text = (
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 24 --hidden-size 2048 "
        "--num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 "
        "--micro-batch-size 1 --global-batch-size 512 --vocab-size 50304 --bf16 "
        "--tokenizer-type NullTokenizer --tensor-model-parallel-size 8"
    )
    answer = lint({"job.yaml": job("bash", "-c", text)}, parse_cluster("1x8xh100-sxm"))
    assert answer.best is not None
    assert any(change.file == "job.yaml.sh" for change in answer.best.by_hand)
    assert "job.yaml.sh" not in answer.best.files
