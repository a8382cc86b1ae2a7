"""The declarations of the built-ins, one module each; `BUILTINS` is all of them in kube-scheduler's order."""
