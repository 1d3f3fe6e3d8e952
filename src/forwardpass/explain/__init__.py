"""Where the time of a run went, and how far that is from what this machine can do."""
