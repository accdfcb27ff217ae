"""The bank that `polonaise demo` runs: payments as transaction contexts, a node killed on the way, then the audit."""
