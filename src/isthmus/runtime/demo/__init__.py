"""The training script and the models that trials, benchmarks and tests run."""
