"""A serving engine with the names and signatures of SGLang 0.5.15.post1 that a capture meets, and a real tiny model.

`python -m sglang.launch_server --model-path T --port P` serves `/generate` with token ids: a scheduler in a process of
its own (spawned) makes batches, prefills in chunks (FAKE_CHUNK tokens a pass, 16 by default), and answers one token.
"""

__version__ = "0.5.15.post1"
