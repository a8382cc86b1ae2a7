"""The registry of source kinds and the settings schema name the same kinds."""

from policysched.metric_sources.registry import SOURCE_KINDS
from policysched.schemas import schema


def test_the_settings_schema_has_every_registered_kind_and_no_other() -> None:
    source = schema("settings")["$defs"]["source"]

    assert source["properties"]["kind"]["enum"] == list(SOURCE_KINDS)
    assert [case["if"]["properties"]["kind"]["const"] for case in source["allOf"]] == list(SOURCE_KINDS)
