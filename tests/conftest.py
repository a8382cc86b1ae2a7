"""What all tests share: fixtures that live in plugins beside what they provide."""

pytest_plugins = ["tests.controlplane.fixtures", "tests.prometheus.fixtures", "tests.language.update_golden"]
