"""Why nobody answered, in the system's words and not in those of the library."""

import asyncio

import aiohttp

from policysched.http_errors import describe_http_error


def why(url: str) -> str:
    async def ask() -> str:
        async with aiohttp.ClientSession() as session:
            try:
                await session.get(url)
            except aiohttp.ClientError as error:
                return describe_http_error(error)
        raise AssertionError(f"{url} has answered")

    return asyncio.run(ask())


def test_a_refused_connection_is_described_with_its_address_and_the_system_error() -> None:
    assert why("http://127.0.0.1:1/") == "cannot connect to 127.0.0.1:1: Connection refused"


def test_a_host_whose_addresses_all_refuse_is_described_once() -> None:
    assert why("http://localhost:1/") == "cannot connect to localhost:1: Connection refused"


def test_an_unknown_host_name_is_described_with_the_resolvers_message() -> None:
    reason = why("http://nobody.invalid/")

    assert reason.startswith("cannot connect to nobody.invalid:80: ")
    assert "ssl" not in reason and "Errno" not in reason


def test_other_errors_are_described_in_one_line_or_by_their_type() -> None:
    assert describe_http_error(aiohttp.ServerDisconnectedError("went\naway")) == "went away"
    assert describe_http_error(TimeoutError()) == "TimeoutError"
