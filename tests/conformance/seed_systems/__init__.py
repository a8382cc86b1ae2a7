"""The systems that policies here stand in for, and the cases that say what each of them does.

    worlds       what a case gives (Kubernetes objects, numbers) as a world, and the policies of `policies/` on it
    comparing    what was expected against what was found, key by key
    choices      where ours differs by choice, read from `docs/seeds/`
    answers      which module answers for which system
    ...          a module a system: from the case's input, by the policy and the engine, to what is asked

Nothing here knows a formula or an answer: every number comes from a policy's text, evaluated by the engine.
"""
