"""What MaxText's own pyconfig says to configs, on a machine without accelerators.

    MAXTEXT_PATH=<a checkout> python tests/oracles/maxtext_check.py < questions > answers

jax, omegaconf and what else its configuration imports must be installed.  One question per line, a
JSON object: `config` (the YAML) and `devices`.  One answer per line, a JSON object: `error` (empty
where MaxTextConfig takes the config), and the batches and the mesh that it derives.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import json
import os
import sys
import tempfile
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

# What only training, data and checkpoints import.
ABSENT = (
    "maxtext.inference", "etils", "orbax", "flax", "optax", "tensorflow", "tensorboardX", "google",
    "grain", "qwix", "pathwaysutils", "transformers", "datasets", "aqt", "psutil",
    "tokamax", "safetensors", "cloud_tpu_diagnostics", "ml_goodput_measurement", "drjax",
)  # fmt: skip


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for packages that the configuration only imports."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if any(name == one or name.startswith(f"{one}.") for one in ABSENT):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> ModuleType:
        module: Any = MagicMock(name=spec.name)
        module.__path__, module.__spec__, module.__name__ = [], spec, spec.name
        module.__file__, module.__version__ = "", "99"
        made: ModuleType = module
        return made

    def exec_module(self, module: ModuleType) -> None:
        pass


def answer(pyconfig: Any, question: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/config.yml"
        with open(path, "w") as file:
            file.write(question["config"])
        devices = [
            "internal_compile=true",
            f"internal_compile_num_devices={question['devices']}",
            f"num_slices={question['slices']}",
            f"base_output_directory={folder}",
        ]
        try:
            made = pyconfig.initialize_pydantic(["train.py", path, *devices])
        except (Exception, SystemExit) as refused:
            return {"error": f"{type(refused).__name__}: {refused}"}
    names = ("micro_batch_size_to_train_on", "global_batch_size_to_train_on", "num_slices")
    axes = {axis: getattr(made, f"ici_{axis}_parallelism") for axis in question["axes"]}
    return {"error": "", "ici": axes, **{name: getattr(made, name) for name in names}}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    quiet = open(os.devnull, "w")  # noqa: SIM115
    os.dup2(quiet.fileno(), 1)
    os.dup2(quiet.fileno(), 2)
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        sys.meta_path.insert(0, Absent())
        sys.path.insert(0, os.environ["MAXTEXT_PATH"] + "/src")
        from maxtext.configs import pyconfig

        # It starts no distributed job where tests run: where pytest is imported.
        sys.modules.setdefault("pytest", ModuleType("pytest"))
        for line in sys.stdin:
            answers.write(json.dumps(answer(pyconfig, json.loads(line))) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
