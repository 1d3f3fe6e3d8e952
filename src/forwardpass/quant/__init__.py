"""Which kernel layout a stored tensor gets."""
