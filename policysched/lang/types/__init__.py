"""Types of the language, units of numbers, and records read from JSON."""
