"""The state machine that decides: events in, commands out, nothing waits.

`Scheduler.handle(event, now_ns)` applies what happened and never decides; `Scheduler.decide(now_ns)` takes one pod, or
one gang whole. Time comes in as an argument, order from the data. What the world does with the commands comes back as
events.
"""
