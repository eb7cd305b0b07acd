"""Two launch scripts against each other: read without being run, priced on the same cluster."""

from pathlib import Path

from planner import estimate
from planner.answers.lint.lint import read
from planner.frameworks.sources import files_at
from planner.inputs.requests.parser import parse_cluster

cluster = parse_cluster("2x8xh100-sxm")
for name in ("tensor_parallel.sh", "pipeline.sh"):
    said = read(files_at([str(Path(__file__).with_name(name))]), cluster)
    answer = estimate(said.request).estimate
    print(f"{name}: {answer.iteration_time_s:.1f} s, {answer.memory.peak_bytes / 2**30:.1f} GiB")
    for part, seconds in sorted(answer.time_parts_s.items(), key=lambda one: -one[1])[:3]:
        print(f"  {part:10} {seconds:6.2f} s")
