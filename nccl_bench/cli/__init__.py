"""The front door: argv to values to one flow to an exit code."""
