"""`policysched explain`: why one pod of a cluster file is placed where it is."""
