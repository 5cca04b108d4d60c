"""What each command does, one module each, and what they show."""
