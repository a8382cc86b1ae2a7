"""kube-scheduler's own configuration, made into policies: `policysched import-config`.

    file ──► reading ──► configuration | old_policy ──► profile (plugins merged) ──► draft ──► policy text
                                   └────────── what cannot be expressed ──────────► report

What a policy cannot say is listed with its place in the file; nothing is dropped in silence. Whether a plugin is
covered is asked of `builtins.registry` and `builtins.unsupported`, so that the list shrinks by itself as built-ins are added.
Nothing here writes files: that is the command's.
"""

from policysched.migrate.importer import ImportResult, import_config

__all__ = ["ImportResult", "import_config"]
