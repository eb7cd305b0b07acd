"""One step of GRPO on 32 H100: where its time goes, and the interval around the whole."""

from planner import rl

answer = rl(
    model="llama-3.1-8b",
    cluster="4x8xh100-sxm",
    reinforcement={
        "prompts": 128,
        "samples": 8,
        "prompt_tokens": 512,
        "response_tokens": 2048,
        "max_response_tokens": 3584,
    },
)
for part, seconds in answer.parts_s.items():
    if seconds:
        print(f"{part:18} {seconds:5.1f} s")
low_s, high_s = answer.interval_s
print(f"the step           {answer.step_time_s:5.1f} s, between {low_s:.1f} and {high_s:.1f}")
