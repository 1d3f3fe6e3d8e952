"""What a user asks of a model."""
