"""Preemption: candidates, victims, and nodes nominated to pods. The search for a gang is `scheduler.gangs.gang_preemption`."""
