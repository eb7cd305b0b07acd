"""Fine-tuning steps on one GPU: predicted before, measured after, memory and time by part.

`python -m tools.gpu_day.prepare FOLDER` writes what is predicted and the files to run, on any
machine; `python tools/gpu_day/measure.py FOLDER OUT`, on a machine with a GPU, torch, transformers,
TRL, PEFT, bitsandbytes and Liger, runs each with random weights and writes what it took;
`python -m tools.gpu_day.compare FOLDER OUT` sets one beside the other.
"""
