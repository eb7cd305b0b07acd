"""TRL's whole step of GRPO: one YAML for trl.scripts.grpo, with vLLM in its ranks or as a server.

Keys of GRPOConfig, of trl/scripts/grpo.py and of trl/scripts/vllm_serve.py (f2cd577).
"""

from __future__ import annotations

from collections.abc import Iterator

from cost_models.plans import ParallelPlan
from planner.constraints import Context
from planner.documents.plan_report import Note
from planner.documents.request import PlanRequest
from planner.frameworks import accelerate, bash_writer, trl, yaml_files
from planner.frameworks.accelerate import settings, trainer_yaml
from planner.frameworks.base import Bundle
from planner.frameworks.launch_bundle import Launch
from planner.frameworks.rollouts import Rollouts
from planner.frameworks.rules import nodes
from planner.frameworks.yaml_files import Row

LAUNCH = Launch(
    "trl", "TRL", trl.VERSIONS, trl.__name__,
    "Needs a checkpoint (MODEL); config.yaml names the prompts and the reward.",
    template="grpo.sh.txt",
)  # fmt: skip
# What a smoke run of fine-tuning sets, which a whole step leaves at TRL's defaults.
LEFT_TO_TRL = frozenset({"learning_rate", "max_steps"})
KL_WEIGHT = 0.04  # DeepSeekMath's (arXiv 2402.03300, section 4.2)
PORT = 8000  # of the server
NEEDS = Note(
    code="needs",
    text="MODEL is a name on Hugging Face or a folder with weights and a tokenizer; the prompts "
    "and the reward in config.yaml are samples. The learning rate and the number of epochs are "
    "TRL's defaults.",
)


def render(request: PlanRequest, plan: ParallelPlan, rollouts: Rollouts) -> Bundle:
    """The launch script, accelerate's config, the step's YAML and the model's config.

    request: of the nodes that train, with sequences of full length.
    """
    c = Context(request.model, request.cluster, request.training)
    documents = {
        "accelerate.yaml": list(settings.launch_rows(c, plan)),
        "config.yaml": list(_rows(c, plan, rollouts)),
    }
    config, keys = settings.config_json(c)
    head, trainers = LAUNCH.head(request, plan), nodes(request.cluster)
    written = {name: f"{head}\n{yaml_files.document(rows)}" for name, rows in documents.items()}
    told = (one for name, rows in documents.items() for one in yaml_files.flags(name, rows))
    apart = rollouts.apart
    return LAUNCH.bundle(
        request,
        plan,
        accelerate.missing(c.model),
        flags=(*told, *keys),
        notes=(NEEDS,),
        files={**written, "config.json": config},
        words={
            "rendezvous": bash_writer.rendezvous(trainers + rollouts.nodes),
            "server": _server(rollouts, trainers) if apart else "",
            "trainers": trainers if apart else '"$NNODES"',
            "host": '\\\n  --vllm_server_host "$VLLM_HOST" ' if apart else "",
        },
    )


def _server(rollouts: Rollouts, trainers: int) -> str:
    """Bash that starts the server on the last node, which does not train."""
    share = round(rollouts.gpu_memory_utilization, 2)
    return f"""\
# The last node generates; the others train.
VLLM_HOST="${{VLLM_HOST:?set it to the address of node {trainers}}}"
if [ "$NODE_RANK" = {trainers} ]; then
  exec trl vllm-serve --model "$MODEL" --port {PORT} \\
    --tensor_parallel_size {rollouts.tp} --data_parallel_size {rollouts.engines} \\
    --gpu_memory_utilization {share} --max_model_len {rollouts.tokens} \\
    --enable_prefix_caching true
fi"""


def _rows(c: Context, plan: ParallelPlan, rollouts: Rollouts) -> Iterator[Row]:
    yield from trl.model_rows(c, plan)
    yield trl.checkpointing(plan)
    yield "use_liger_kernel", True, "the loss runs in chunks with the output layer"
    yield "dataset_name", "trl-lib/DeepMath-103K", "a sample of prompts: put your data set here"
    yield "reward_funcs", ["accuracy_reward"], "of TRL, or the import path of your own"
    yield "num_generations", rollouts.samples, "responses per prompt"
    made = rollouts.prompts * rollouts.samples
    yield "generation_batch_size", made, "responses of a step"
    yield "max_completion_length", rollouts.response_tokens, "where responses are cut"
    yield "num_iterations", rollouts.epochs, "times that a batch is trained on"
    kl = "weight of the reference's KL" if rollouts.reference else "no reference scores responses"
    yield "beta", KL_WEIGHT if rollouts.reference else 0.0, kl
    yield from _engines(rollouts)
    for key, value, why in trainer_yaml.shared(c, plan, trainer_yaml.Keys()):
        if key not in LEFT_TO_TRL:
            yield key, value, why


def _engines(rollouts: Rollouts) -> Iterator[Row]:
    yield "use_vllm", True, "the engine that was priced"
    yield "vllm_max_model_length", rollouts.tokens, "the longest prompt and response"
    if rollouts.apart:
        yield "vllm_mode", "server", "engines have a node of their own: launch.sh starts it"
        yield "vllm_server_port", PORT, "of the server"
        return
    yield "vllm_mode", "colocate", "engines share the ranks that train"
    yield "vllm_tensor_parallel_size", rollouts.tp, "accelerators of one engine"
    share = round(rollouts.gpu_memory_utilization, 2)
    yield "vllm_gpu_memory_utilization", share, "weights and caches"
    yield "vllm_enable_sleep_mode", True, "engines free their memory while ranks train"
