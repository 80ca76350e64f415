"""What it means: comparison, judgement, blame, and what is exported."""
