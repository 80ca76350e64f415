"""Who takes part: launchers, board, supervisor."""
