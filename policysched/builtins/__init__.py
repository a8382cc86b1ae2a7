"""The built-in filters and scores: one folder for each of kube-scheduler's plugins.

`NAME/declaration.py` says what the language needs to know (parameters, reads, events, reasons), `NAME/kernel.py` evaluates it
over columns. `registry` lists them in kube-scheduler's order. Declarations import no NumPy.
"""
