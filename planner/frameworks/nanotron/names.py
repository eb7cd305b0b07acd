"""The keys of nanotron's config, by section; a test compares them with its dataclasses.

A star marks a required key.  Keys of alternative classes (models, optimizers, data sets) are
merged.
"""

_SECTIONS = {
    "": (
        "general* parallelism* model* tokenizer checkpoints logging metrics_logging tokens "
        "optimizer data_stages profiler lighteval s3_upload"
    ),
    "general": (
        "project* run seed step consumed_train_samples benchmark_csv_path ignore_sanity_checks"
    ),
    "parallelism": (
        "dp* pp* tp* pp_engine tp_mode tp_linear_async_communication recompute_layer "
        "tp_recompute_allgather expert_parallel_size context_parallel_size"
    ),
    "model": "model_config* init_method* dtype make_vocab_size_divisible_by ddp_bucket_cap_mb",
    "model.model_config": (
        "bos_token_id eos_token_id hidden_act hidden_size initializer_range intermediate_size "
        "is_qwen2_config max_position_embeddings num_attention_heads num_hidden_layers "
        "num_key_value_heads pad_token_id pretraining_tp rms_norm_eps rope_scaling rope_theta "
        "rope_interleaved rope_seq_len_interpolation_factor tie_word_embeddings use_cache "
        "vocab_size _attn_implementation flex_attention_mask attention_bias sliding_window_size "
        "z_loss_enabled z_loss_coefficient no_rope_layer _fused_rotary_emb _fused_rms_norm "
        "_use_qkv_packed _use_doc_masking log_attn_probs ring_attn_heads_k_stride moe_config "
        "is_llama_config activation_function attention_softmax_in_fp32 attn_pdrop embd_pdrop "
        "global_attn_layers grouped_query is_starcoder2_config layer_norm_epsilon multi_query "
        "num_kv_heads resid_pdrop scale_attention_softmax_in_fp32 scale_attn_weights "
        "use_position_embeddings use_rotary_embeddings"
    ),
    "model.model_config.moe_config": (
        "num_experts top_k moe_intermediate_size shared_expert_intermediate_size "
        "router_aux_loss_coef layers enable_shared_expert token_dispatcher_type"
    ),
    "model.init_method": "std scaling_method use_mup path",
    "tokenizer": "tokenizer_name_or_path tokenizer_revision tokenizer_max_length",
    "checkpoints": (
        "checkpoints_path* checkpoint_interval* save_initial_state save_final_state "
        "resume_checkpoint_path load_lr_scheduler load_optimizer "
        "checkpoints_path_is_shared_file_system"
    ),
    "logging": "log_level log_level_replica iteration_step_info_interval",
    "metrics_logging": "log_level log_detail_interval",
    "tokens": (
        "sequence_length* train_steps* micro_batch_size* batch_accumulation_per_replica* "
        "val_check_interval limit_val_batches limit_test_batches"
    ),
    "optimizer": (
        "optimizer_factory* zero_stage* weight_decay* clip_grad accumulate_grad_in_fp32* "
        "learning_rate_scheduler* weight_decay_exclude_named_params"
    ),
    "optimizer.optimizer_factory": "adam_eps adam_beta1 adam_beta2 torch_adam_is_fused name",
    "optimizer.learning_rate_scheduler": (
        "learning_rate* lr_warmup_steps lr_warmup_style lr_decay_style lr_decay_steps "
        "lr_decay_starting_step min_decay_lr"
    ),
    "data_stages.*": "name* start_training_step* data* sequence_length",
    "data_stages.*.data": "dataset seed num_loading_workers",
    "data_stages.*.data.dataset": (
        "hf_dataset_or_datasets hf_dataset_splits hf_dataset_config_name "
        "dataset_processing_num_proc_per_process dataset_overwrite_cache text_column_name "
        "dataset_folder dataset_weights dataset_read_path tokenizer_name vocab_size "
        "token_size_in_bytes return_positions skip_in_stream pad_samples_to_global_batch_size "
        "dataset_max_tokens shuffle_files use_old_brrr_dataloader sft_dataloader "
        "debug_max_samples"
    ),
    "profiler": (
        "profiler_export_path wait warmup active repeat skip_first record_shapes profile_memory "
        "with_stack export_chrome_trace"
    ),
    "s3_upload": (
        "upload_s3_path* remove_after_upload* s5cmd_numworkers s5cmd_concurrency s5cmd_path"
    ),
    "lighteval": (
        "slurm_script_dir logs_path local_checkpoint_dir parallelism batch_size generation tasks "
        "logging wandb slurm s3_save_path upload_to_wandb wandb_project wandb_entity output_dir "
        "nanotron_path eval_config_override eval_interval eval_interval_file"
    ),
    "lighteval.generation": "sampler temperature top_k top_p n_samples eos seed use_cache",
    "lighteval.tasks": (
        "tasks custom_tasks max_samples num_fewshot_seeds dataset_loading_processes "
        "multichoice_continuations_start_space no_multichoice_continuations_start_space"
    ),
    "lighteval.logging": (
        "local_output_path push_results_to_hub push_details_to_hub push_results_to_tensorboard "
        "hub_repo_results hub_repo_details hub_repo_tensorboard tensorboard_metric_prefix"
    ),
    "lighteval.wandb": "wandb_project wandb_entity wandb_run_name",
    "lighteval.slurm": "gpus_per_node partition hf_cache cpus_per_task qos time reservation",
}
KEYS: dict[str, frozenset[str]] = {
    section: frozenset(word.rstrip("*") for word in words.split())
    for section, words in _SECTIONS.items()
}
# The required keys of each section, if the section is present.
REQUIRED: dict[str, tuple[str, ...]] = {
    section: tuple(word.rstrip("*") for word in words.split() if word.endswith("*"))
    for section, words in _SECTIONS.items()
}
