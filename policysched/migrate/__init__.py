"""Converts a kube-scheduler configuration to policies: `policysched import-config`.

    file ──► located_document ──► importer | legacy_policy ──► profile ──► draft ──► policy text
                                      └─────── not expressible ───┴──► report

Everything that a policy cannot express is reported with its position in the file; nothing is dropped
silently. `builtins.registry` and `builtins.unsupported` say which plugins are supported. This package
writes no files; the command does.
"""

from policysched.migrate.importer import ImportResult, import_config

__all__ = ["ImportResult", "import_config"]
