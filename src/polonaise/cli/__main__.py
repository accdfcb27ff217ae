"""Run the command line, as `python -m polonaise.cli`."""

from polonaise.cli import main

main()
