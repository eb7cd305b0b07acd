"""Machines as programs print them: nvidia-smi, Slurm, Kubernetes, ibstat, lspci."""
