"""Short names of fields that people type: those of the screens and of frameworks' scripts."""

SHORT_NAMES = {
    "mbs": "micro_batch_size",
    "gbs": "global_batch_size",
    "seq": "seq_length",
    "sp": "sequence_parallel",
    "zero": "zero_stage",
}
