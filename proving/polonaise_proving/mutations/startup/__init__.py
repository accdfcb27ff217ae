"""What Python runs when a child process of a mutated run starts: this directory is on its path, and not a package."""
