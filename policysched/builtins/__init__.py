"""The built-in filters and scores: one folder per kube-scheduler plugin.

`NAME/declaration.py` declares what the language needs to know (parameters, reads, events, reasons);
`NAME/kernel.py` evaluates it over columns. `registry` lists them in kube-scheduler's order.
Declarations import no NumPy.
"""
