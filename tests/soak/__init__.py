"""An hour of churn on virtual time, and what the scheduler's memory does meanwhile: `make soak`."""
