"""The KV cache: blocks of 64 positions, who holds them, and which finished texts may be continued."""
