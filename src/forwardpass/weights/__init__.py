"""Checkpoints as they lie on disk: GGUF and safetensors readers, their vocabularies, and exact dequantisation.

Every reader here treats a model file as hostile input: counts, lengths, offsets and shapes are compared with the
size of the file before anything is allocated, and every fault is a `ForwardpassError` that names the file.
"""
