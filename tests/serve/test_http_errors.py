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


def test_a_refused_connection_is_said_with_where_and_what_the_system_said() -> None:
    assert why("http://127.0.0.1:1/") == "cannot connect to 127.0.0.1:1: Connection refused"


def test_a_host_of_several_addresses_that_all_refuse_is_said_once() -> None:
    assert why("http://localhost:1/") == "cannot connect to localhost:1: Connection refused"


def test_a_name_that_nobody_knows_is_said_in_the_resolvers_words() -> None:
    said = why("http://nobody.invalid/")

    assert said.startswith("cannot connect to nobody.invalid:80: ")
    assert "ssl" not in said and "Errno" not in said


def test_what_else_went_wrong_says_itself_on_one_line_and_by_its_kind_where_it_says_nothing() -> None:
    assert describe_http_error(aiohttp.ServerDisconnectedError("went\naway")) == "went away"
    assert describe_http_error(TimeoutError()) == "TimeoutError"
