"""Where operations run. `protocol` says what a backend offers; `native` is the CPU."""
