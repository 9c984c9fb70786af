import json

config = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "vocab_size": 32000}
config |= {"num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 4096}
with open("config.json", "w") as file:
    json.dump({**config, "architectures": ["LlamaForCausalLM"]}, file)
# The page shows a trace, too.
trace_text = PAGE.read_text(encoding="utf-8").split("```json\n")[1].split("```")[0]
with open("trace.json", "w") as file:
    file.write(trace_text)

run()
assert estimate.peak > 0
assert trace.units[1].name == "h.0"
assert memory.estimate(trace, microbatch_size=8, pipeline=2, microbatches=4).peak > 0
