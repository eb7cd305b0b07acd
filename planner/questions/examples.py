"""Examples of what is asked, one dictionary for each kind of document."""

from __future__ import annotations

from typing import Any

_SHORT_REQUEST = {
    "model": "llama-3.1-8b",
    "cluster": "2x8xh100-sxm",
    "training": {"seq_length": 8192, "global_batch_size": 128},
}
PLAN_EXAMPLES: dict[str, Any] = {
    "short": {"summary": "Names from the catalog", "value": _SHORT_REQUEST},
    "limits": {
        "summary": "Limits on plan fields",
        "value": _SHORT_REQUEST | {"search": {"tp": {"max": 4}, "zero_stage": [0, 1], "top_k": 3}},
    },
    "cluster": {
        "summary": "A cluster in full, a price and a number of tokens",
        "value": _SHORT_REQUEST
        | {
            "cluster": {
                "accelerator": "h100-sxm-80gb",
                "nodes": 2,
                "accelerators_per_node": 8,
                "reserved_bytes_per_accelerator": 4294967296,
                "price_usd_per_accelerator_hour": 2.3,
            },
            "training": {"seq_length": 8192, "global_batch_size": 128, "tokens": 1e12},
        },
    },
}


ESTIMATE_EXAMPLES: dict[str, Any] = {
    "short": {
        "summary": "One plan",
        "value": _SHORT_REQUEST
        | {
            "plan": {
                "tp": 2,
                "sequence_parallel": True,
                "recompute": "full",
                "recompute_num_layers": 32,
            }
        },
    }
}
_REQUEST_WITH_PIPELINE = _SHORT_REQUEST | {"plan": {"tp": 4, "sequence_parallel": True, "pp": 2}}


TIMELINE_EXAMPLES: dict[str, Any] = {
    "short": {
        "summary": "Interleaved 1F1B, times of one chunk",
        "value": {
            "schedule": "interleaved-1f1b",
            "stages": 4,
            "micro_batches": 8,
            "chunks": 2,
            "forward_s": 0.01,
            "input_grad_s": 0.01,
            "weight_grad_s": 0.01,
        },
    },
    "messages": {
        "summary": "Messages that take time, and keep their sender waiting",
        "value": {
            "schedule": "1f1b",
            "stages": 8,
            "micro_batches": 16,
            "forward_s": 0.02,
            "input_grad_s": 0.021,
            "weight_grad_s": 0.019,
            "p2p_s": 2e-5,
            "p2p_transfer_s": 0.001,
            "blocking": True,
        },
    },
}


TIMELINE_EXAMPLES["plan"] = {"summary": "The pipeline of a plan", "value": _REQUEST_WITH_PIPELINE}


SCHEDULE_EXAMPLES: dict[str, Any] = {
    "short": {
        "summary": "Eight stages whose times are given, without a model",
        "value": {
            "stages": 8,
            "micro_batches": 16,
            "forward_s": 0.02,
            "input_grad_s": 0.02,
            "weight_grad_s": 0.02,
        },
    },
    "plan": {"summary": "The pipeline of a plan", "value": _REQUEST_WITH_PIPELINE},
}


COMPARISON_EXAMPLES: dict[str, Any] = {
    "short": {
        "summary": "With a pipeline, and with tensor parallelism alone",
        "value": {
            "a": _REQUEST_WITH_PIPELINE,
            "b": _SHORT_REQUEST | {"plan": {"tp": 8, "sequence_parallel": True}},
        },
    }
}


DIMS_EXAMPLES: dict[str, Any] = {
    "short": {
        "summary": "A dense model",
        "value": {
            "name": "ours",
            "num_layers": 28,
            "hidden_size": 3072,
            "num_attention_heads": 24,
            "num_query_groups": 8,
            "ffn_hidden_size": 8192,
            "vocab_size": 128256,
            "max_position_embeddings": 8192,
            "gated_mlp": True,
        },
    }
}


CONFIG_EXAMPLES: dict[str, Any] = {
    "short": {
        "summary": "A Qwen3 mixture of experts",
        "value": {
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            "hidden_size": 4096,
            "num_hidden_layers": 94,
            "num_attention_heads": 64,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "intermediate_size": 12288,
            "moe_intermediate_size": 1536,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "vocab_size": 151936,
            "max_position_embeddings": 40960,
            "tie_word_embeddings": False,
        },
    }
}


_SCRIPT = """\
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py \\
  --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \\
  --seq-length 4096 --max-position-embeddings 4096 --vocab-size 32000 \\
  --micro-batch-size 1 --global-batch-size 256 --bf16 \\
  --tensor-model-parallel-size 8 --pipeline-model-parallel-size 2 \\
  --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
"""


LINT_EXAMPLES: dict[str, Any] = {
    "short": {
        "summary": "A launch of Megatron-LM",
        "value": {"files": {"run.sh": _SCRIPT}, "cluster": "2x8xh100-sxm"},
    }
}


SENSITIVITY_EXAMPLES: dict[str, Any] = {
    "short": {
        "summary": "Two inputs, each halved and doubled",
        "value": {
            "model": "gpt2",
            "cluster": "1x4xh100-sxm",
            "training": {"seq_length": 1024, "global_batch_size": 64},
            "search": {"tp": {"max": 2}, "pp": 1, "cp": 1},
            "sensitivity": {
                "inputs": ["nvlink_bandwidth_bytes_per_s", "matrix_efficiency"],
                "factors": [0.5, 2.0],
            },
        },
    }
}


RL_EXAMPLES: dict[str, Any] = {
    "short": {
        "summary": "GRPO, generated on one of two nodes",
        "value": {
            "model": "llama-3.2-1b",
            "cluster": "2x8xh100-sxm",
            "training": {},
            "search": {"tp": 1, "pp": 1, "cp": 1},
            "reinforcement": {
                "prompts": 64,
                "samples": 8,
                "prompt_tokens": 512,
                "response_tokens": 1536,
                "generation_tokens_per_s": 5000,
                "generation": "other",
                "generation_nodes": 1,
            },
        },
    }
}


SIZING_EXAMPLES: dict[str, Any] = {
    "short": {
        "summary": "Which of two kinds, within a month",
        "value": {
            "model": "llama-3.1-8b",
            "training": {"seq_length": 8192, "global_batch_size": 512, "tokens": 1e12},
            "sizing": {
                "accelerators": ["h100-sxm", "mi300x"],
                "sizes": [64, 128, 256],
                "deadline_days": 30,
            },
        },
    }
}


_TABLE_OF_RUNS = """\
id,gpu,n_gpus,gpus_per_node,model,stack,seq_len,global_batch,tp,pp,dp,micro_batch,zero_stage,\
precision,recompute,iteration_time_s
ours-1,H100 SXM 80GB,16,8,llama-3.1-8b,Megatron-LM,8192,128,2,1,8,1,1,bf16,none,6.4
"""
SITE_EXAMPLES: dict[str, Any] = {
    "short": {
        "summary": "A row of a table, shown and not kept",
        "value": {"log": _TABLE_OF_RUNS, "cluster": "2x8xh100-sxm", "keep": False},
    }
}


_TINY_REQUEST = {
    "model": {
        "name": "tiny",
        "num_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "ffn_hidden_size": 256,
        "vocab_size": 512,
    },
    "cluster": "1x1xh100-sxm",
    "training": {"seq_length": 64, "global_batch_size": 4},
    "plan": {"tp": 1},
}
RESULT_EXAMPLES: dict[str, Any] = {
    "short": {
        "summary": "The only rank of a small model",
        "value": {
            "request": _TINY_REQUEST,
            "ranks": [
                {
                    "rank": 0,
                    "ranks": 1,
                    "host": "node-1",
                    "stages": [0],
                    "device": "NVIDIA H100 80GB HBM3",
                    "threads": 8,
                    "versions": {"torch": "2.13.0"},
                    "step_s": [0.0021, 0.002],
                    "losses": [6.3, 6.2],
                    "profiled_step_s": 0.0022,
                    "parts_s": {
                        "forward": 0.0006,
                        "backward": 0.0011,
                        "communication": 0.0,
                        "optimizer": 0.0003,
                        "idle": 0.0,
                        "other": 0.0002,
                    },
                    "amounts": {
                        "parameter_bytes": 370000,
                        "gathered_bytes": 370000,
                        "gradient_bytes": 740000,
                        "optimizer_bytes": 2220000,
                        "activation_bytes": 900000,
                        "working_bytes": 400000,
                        "peak_bytes": 5000000,
                    },
                    "allocator_peak_bytes": 20000000,
                    "saved_tensors": [],
                    "gradient_errors": {},
                }
            ],
        },
    }
}
