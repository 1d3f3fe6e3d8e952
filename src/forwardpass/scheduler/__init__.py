"""Decides what each step computes. Plain data and bookkeeping: it knows no model."""
