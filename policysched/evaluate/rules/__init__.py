"""Rules specialized for one pod, their raw scores and normalizers."""
