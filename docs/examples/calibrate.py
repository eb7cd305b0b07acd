"""Measure this machine, and price a small training with what was measured.  Needs torch."""

from planner import estimate
from planner.cli import run

REQUEST = {
    "model": "gpt2",
    "cluster": "local",
    "training": {"seq_length": 128, "global_batch_size": 2, "precision": "fp32"},
    "plan": {"attention_kernel": "unfused"},
}
print(f"before: {estimate(REQUEST).estimate.iteration_time_s:.2f} s")
# The same as `planner calibrate --site example ...` on the command line.
options = "--model gpt2 --cluster local --seq-length 128 --global-batch-size 2 --precision fp32"
run(["calibrate", *options.split(), "--attention-kernel", "unfused", "--name", "example"])
print(f"after: {estimate({**REQUEST, 'site': 'example'}).estimate.iteration_time_s:.2f} s")
