"""How it is shown: terminal, charts, pages."""
