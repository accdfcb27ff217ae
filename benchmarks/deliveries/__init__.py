"""The parts of `python -m benchmarks.delivery`: transactions, targets, the bare programs, Kafka, tables and the plot."""
