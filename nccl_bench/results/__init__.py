"""What was kept: run directories and importers."""
