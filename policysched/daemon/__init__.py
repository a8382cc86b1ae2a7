"""What `policysched run` and `policysched extender` have in common: clock, logs, reflectors, policy feed, samples."""
