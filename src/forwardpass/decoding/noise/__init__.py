"""How a picture comes out of noise: normal numbers of its own, and schedules of how much of them each step leaves."""
