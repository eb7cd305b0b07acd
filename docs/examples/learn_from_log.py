"""Learn from the logs of jobs: what is estimated before and after three runs of the cluster.

The logs are Megatron's, as Slurm leaves them beside a job; the cluster has four V100 a node.
"""

from pathlib import Path

from planner import estimate
from planner.inputs.logs import lines_of
from planner.inputs.requests.parser import parse_cluster
from planner.learning.sites.learn_answer import keep, read_runs
from planner.learning.sites.learned_run import LearningRequest

LOGS = Path(__file__).parents[2] / "tests" / "fixtures" / "logs"

asked = LearningRequest(site="example", cluster=parse_cluster("128x4xv100"))
logs = [LOGS / f"megatron_gpt_{nodes}_nodes.log" for nodes in (4, 16, 32)]
found = read_runs([(log.name, lines_of(log.open("rb"))) for log in logs], asked)
for one in found.runs:
    run = one.run
    print(f"{run.file}: {run.step_s:.2f} s measured, {run.estimated_s:.2f} s estimated")

keep(found)  # `planner sites forget example` takes it away again
request = found.runs[-1].run.request
for name, site in (("without", None), ("with", "example")):
    answer = estimate({**request, "site": site}).estimate
    print(f"{name} the site: {answer.iteration_time_s:.2f} s")
