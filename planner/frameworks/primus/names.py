"""Primus's own keys, besides the attributes of Megatron-LM's parser, and the values of its presets.

Sources: primus/configs/modules and primus/configs/models/megatron (fd1eeab).
"""

from __future__ import annotations

from typing import Any

OVERRIDES = "modules.pre_trainer.overrides."

_OWN = """
    allow_padding_num_layers attn_logit_softcapping auto_continue_train auto_offload_time
    communication_method conv_L_cache conv_bias cpu_offload dataloader_mp_context
    debug_scheduler_table decoder_pipeline_manual_split_list disable_compile_dependencies
    disable_delayed_scaling_patches disable_last_saving disable_mlflow
    disable_primus_topk_router disable_profiler_activity_cpu
    disable_tensorboard disable_wandb dump_pp_data enable_1f1b_v enable_exactly_numeric_match
    enable_optimizer_post_validation enable_primus_turbo enable_turbo_attention_float8
    enable_zb_runtime enable_zero_bubble file_sink_level final_logit_softcapping
    generate_tracelens_report interleave_group_size lfm_layer_types
    log_avg_reset_interval log_avg_skip_iterations mlflow_experiment_name
    mlflow_run_name mlflow_tracelens_auto_install mlflow_tracelens_cleanup_after_upload
    mlflow_tracelens_output_format mlflow_tracelens_ranks mlflow_upload_logs
    mlflow_upload_performance_metrics mlflow_upload_tracelens_report mlflow_upload_traces
    moe_router_force_load_balancing moe_router_force_load_balancing_type
    moe_use_fused_router_with_aux_score mxfp4_gradient_stochastic_rounding
    no_fp8_weight_transpose_cache num_seq_splits offload offload_chunk_num offload_ops
    offload_overlap_sr offload_time patch_moe_overlap patch_primus_pipeline patch_zero_bubble
    pp_algorithm pp_cost_b pp_cost_f pp_cost_w pp_max_mem pp_warmup
    pre_communication_optimization profile_memory_iter recompute_layer_ids
    router_logit_softcapping sink_level sink_sliding_window sink_window_even_layers_only
    stderr_sink_level torch_compile torch_profiler_record_shapes torch_profiler_use_gzip
    torch_profiler_with_stack trainable turbo_deepep_num_cu turbo_deepep_use_comm_stream
    turbo_gemm_backend turbo_grouped_gemm_backend turbo_grouped_gemm_without_padding
    turbo_mega_moe_precision turbo_sync_free_moe_stage use_deprecated_20241209_moe_layer
    use_rocm_mem_info use_rocm_mem_info_iters use_sink_attention use_turbo_attention
    use_turbo_autotune use_turbo_deepep use_turbo_fused_act_with_probs use_turbo_gemm
    use_turbo_grouped_gemm use_turbo_mega_moe use_turbo_norm_te_linear use_turbo_rms_norm
    weight_deosc weight_deosc_log_freq weight_deosc_period weight_deosc_ratio
    weight_deosc_start_step zero_bubble_adaptive_memory_limit_percentile
    zero_bubble_max_pending_backward zero_bubble_pipeline_timers_end_iter
    zero_bubble_pipeline_timers_start_iter zero_bubble_v_schedule zero_bubble_v_schedule_mem_setup
"""
OWN = frozenset(_OWN.split())
# Those of them that change the model.
SHAPING = frozenset(
    {"conv_L_cache", "conv_bias", "lfm_layer_types", "use_sink_attention", "sink_sliding_window"}
)
# Values of presets that differ from Megatron-LM's defaults; TRAINER and MODEL are written.
TRAINER, TUNER, MODEL = "pre_trainer.yaml", "sft_trainer.yaml", "language_model.yaml"
PRESETS: dict[str, dict[str, Any]] = {
    TRAINER: {
        "bf16": True,
        "dataloader_type": "cyclic",
        "eval_iters": 0,
        "finetune": True,
        "global_batch_size": 16,
        "log_interval": 1,
        "lr": 2.0e-5,
        "lr_warmup_iters": 40,
        "micro_batch_size": 2,
        "seq_length": 1024,
        "train_iters": 1000,
        "use_distributed_optimizer": True,
        "use_flash_attn": True,
    },
    TUNER: {
        "bf16": True,
        "dataloader_type": "cyclic",
        "eval_iters": 10,
        "finetune": True,
        "global_batch_size": 128,
        "lr": 1.0e-5,
        "lr_warmup_iters": 50,
        "micro_batch_size": 1,
        "seq_length": 2048,
        "train_iters": 1000,
        "use_distributed_optimizer": True,
        "use_flash_attn": True,
    },
    MODEL: {
        "add_bias_linear": False,
        "hidden_size": 1024,
        "mscale_all_dim": 1.0,
        "num_attention_heads": 16,
        "num_layers": 24,
        "sequence_parallel": True,
        "swiglu": True,
        "untie_embeddings_and_output_weights": True,
    },
}
