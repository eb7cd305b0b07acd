"""LitGPT: Lightning Fabric with FSDP, read from its YAML and its command line."""
