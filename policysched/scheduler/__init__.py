"""The scheduler as a state machine: events in, commands out. It does no I/O and reads no clock.

`Scheduler.handle(event, now_ns)` applies an event and makes no attempt. `Scheduler.decide(now_ns)` makes one attempt of
a pod or a gang. Time is an argument, and order comes from the data. The outcome of a command comes back as an event.

Start with `scheduler` (the two entry points), `attempt` (one pod from the queue to its bind), `queue` (which is next)
and `core` (the shared state). The layers are an import contract in `pyproject.toml`.
"""
