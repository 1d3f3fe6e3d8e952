"""One file a family: its names in configs and checkpoints, and its numbers. No forward code; see ../registry.py."""
