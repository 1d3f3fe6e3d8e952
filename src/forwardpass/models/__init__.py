"""Models as data: specs, families, weight tables and costs. `registry.read` turns an open checkpoint into a spec."""
