"""Rules specialized for one pod, and the interface of the kernels that evaluate built-ins."""
