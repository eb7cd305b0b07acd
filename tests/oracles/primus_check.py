r"""What Primus and its Megatron-LM say to configs, on a machine without accelerators.

    PRIMUS_PATH=<a checkout> MEGATRON_LM_PATH=<its submodule> \
    python tests/oracles/primus_check.py < questions > answers

One question per line, a JSON object: `config` (the YAML), `argv` (what Megatron-LM itself would be
given), `world_size`, `environment` and `last`, a stage of megatron_check.  One answer per line, a
JSON object: `differ` (attributes that the config and argv say otherwise), and what megatron_check
answers to the arguments that Primus makes of the config.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from types import SimpleNamespace
from typing import Any

import megatron_check


def _plain(value: Any) -> Any:
    """A list for a tuple, nothing for what is off."""
    return list(value) if isinstance(value, tuple) else value or None


class Judge(megatron_check.Judge):
    """One config on its way through the stages of Megatron-LM."""

    def parse(self) -> None:
        from primus.backends.megatron.argument_builder import MegatronArgBuilder
        from primus.core.config.primus_config import get_module_config, load_primus_config

        super().parse()
        theirs = vars(self.args)
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/config.yaml"
            text = self.question["config"].replace("./output", f"{folder}/output")
            with open(path, "w") as file:
                file.write(text)
            module = get_module_config(load_primus_config(path), "pre_trainer")
        builder = MegatronArgBuilder()
        builder.update(module.params)
        made = builder.finalize()
        self.found["differ"] = sorted(
            name for name, value in vars(made).items() if _plain(value) != _plain(theirs[name])
        )
        made.world_size, made.rank, made.local_rank = self.world, 0, 0
        own = ("patch_primus_pipeline", "pp_algorithm", "recompute_layer_ids")
        extra = {name: getattr(module.params, name) for name in own}
        self.args = SimpleNamespace(**{**theirs, **vars(made), **extra})
        if self.args.tensor_model_parallel_size == 1:
            self.args.sequence_parallel = False  # its patch sequence_parallel_tp1

    def config(self) -> None:
        from primus.backends.megatron.patches import recompute_layer_patches as patches
        from primus.core.patches import PatchContext

        if self.args.recompute_layer_ids is not None:
            module = SimpleNamespace(params=self.args)
            context = PatchContext("megatron", "before_train", extra={"module_config": module})
            patches.patch_custom_recompute_layer_ids(context)
        super().config()

    def optimizer(self) -> None:
        from megatron.training import training

        training.get_megatron_optimizer_config(self.args)

    def batch(self) -> None:
        from primus.core.pipeline_parallel.scheduler import schedule_table_factory as schedules

        args = self.args
        if not getattr(args, "patch_primus_pipeline", False):
            super().batch()
            return
        count = args.global_batch_size // (args.micro_batch_size * args.data_parallel_size)
        chunks = args.virtual_pipeline_model_parallel_size or 1
        pp = args.pipeline_model_parallel_size
        made = schedules.produce_schedule_instance(args.pp_algorithm, pp, chunks, count)
        made.generate_schedule_table()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    quiet = open(os.devnull, "w")  # noqa: SIM115
    os.dup2(quiet.fileno(), 1)
    os.dup2(quiet.fileno(), 2)
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        sys.path.insert(0, os.environ["PRIMUS_PATH"])
        megatron_check.import_all()
        megatron_check.Judge = Judge  # type: ignore[misc]
        for line in sys.stdin:
            question: dict[str, Any] = json.loads(line)
            answers.write(megatron_check.in_a_fork(question) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
