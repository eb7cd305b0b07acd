"""Megatron-LM's pretrain_gpt.py, with MindSpeed's patches in place before it is read."""

import os
import runpy
import sys

import torch  # noqa: F401
import mindspeed.megatron_adaptor  # noqa: F401

checkout = os.environ["MEGATRON_PATH"]
sys.path.insert(0, checkout)
runpy.run_path(os.path.join(checkout, "pretrain_gpt.py"), run_name="__main__")
