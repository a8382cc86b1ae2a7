"""The systems that the shipped policies replace, and how their recorded cases are answered.

    worlds         the input of a case (objects, numbers) as a scenario, and the shipped policies on it
    scheduler_run  a scheduler that receives the events of a case one by one
    comparing      expected and actual values, key by key
    choices        intended differences, read from `docs/seeds/`
    answers        which module answers for which system
    ...            one module for each system: from the input of a case to its answer

This package contains no formulas and no answers: every number comes from a policy's text, evaluated
by the engine.
"""
