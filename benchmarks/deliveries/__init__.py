"""The parts of `python -m benchmarks.delivery`: the set-up, targets, bare programs, Kafka, tables and the plot."""
