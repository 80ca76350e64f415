"""What happens: the only rooms that wire others together; they yield events."""
