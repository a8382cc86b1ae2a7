"""Settings of the long-running programs: file, environment variables, flags."""
