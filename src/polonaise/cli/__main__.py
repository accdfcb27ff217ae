"""`python -m polonaise.cli`."""

from polonaise.cli import main

main()
