"""Addresses, networks, URLs, formats, regular expressions, sets and lists in selectors mean what Kubernetes' CEL libraries say.

The examples are those in the documentation of the libraries (`ip.go`, `cidr.go`, `urls.go`, `lists.go` of k8s.io/apiserver
v0.37.2, `ext/README.md` of cel-go), and edges of `net/netip` and `net/url`, whose answers are those of Go 1.26.
"""

import sys

import pytest

from policysched.cluster.devices.cel_selectors import CelSelectorError, DeviceSelectors
from policysched.cluster.devices.selector_cost import EVALUATION
from policysched.model.devices import Device

DEVICE = Device("d", {}, {})


EXAMPLES = [
    "ip('127.0.0.1').family() == 4 && ip('::1').family() == 6",
    "isIP('127.0.0.1') && isIP('::1') && !isIP('127.0.0.256') && !isIP(':::1') && !isIP('127.0.0.01')",
    "!isIP('::ffff:1.2.3.4') && !isIP('fe80::1%eth0') && !isIP('') && !isIP('1')",
    "ip.isCanonical('127.0.0.1') && ip.isCanonical('2001:db8::abcd')",
    "!ip.isCanonical('2001:DB8::ABCD') && !ip.isCanonical('2001:db8::0:0:0:abcd')",
    "string(ip('2001:DB8:0::ABCD')) == '2001:db8::abcd' && ip('::0') == ip('::')",
    "ip('0.0.0.0').isUnspecified() && ip('::').isUnspecified() && !ip('::1').isUnspecified()",
    "ip('127.9.0.1').isLoopback() && !ip('192.168.0.1').isLoopback() && !ip('2001:db8::abcd').isLoopback()",
    "ip('224.0.0.1').isLinkLocalMulticast() && !ip('224.0.1.1').isLinkLocalMulticast()",
    "ip('ff02::1').isLinkLocalMulticast() && !ip('fd00::1').isLinkLocalMulticast()",
    "ip('169.254.169.254').isLinkLocalUnicast() && !ip('192.168.0.1').isLinkLocalUnicast()",
    "ip('fe80::1').isLinkLocalUnicast() && !ip('fd80::1').isLinkLocalUnicast()",
    "ip('192.168.0.1').isGlobalUnicast() && ip('2001:db8::abcd').isGlobalUnicast()",
    "!ip('255.255.255.255').isGlobalUnicast() && !ip('ff00::1').isGlobalUnicast() && !ip('::').isGlobalUnicast()",
    "isCIDR('192.168.0.0/16') && isCIDR('::1/128') && !isCIDR('192.168.0.0/33') && !isCIDR('::1/129')",
    "!isCIDR('1.2.3.4') && !isCIDR('1.2.3.4/') && !isCIDR('1.2.3.4/08') && !isCIDR('1.2.3.4/255.255.255.0')",
    "cidr('192.168.0.0/24').containsIP(ip('192.168.0.1')) && !cidr('192.168.0.0/24').containsIP('192.168.1.1')",
    "!cidr('0.0.0.0/0').containsIP('::1')",
    "cidr('192.168.0.0/16').containsCIDR(cidr('192.168.10.0/24'))",
    "!cidr('192.168.1.0/24').containsCIDR('192.168.2.0/24') && !cidr('10.0.0.0/8').containsCIDR('10.0.0.0/7')",
    "cidr('192.168.0.1/24').ip() == ip('192.168.0.1') && cidr('::1/128').ip().family() == 6",
    "cidr('192.168.0.1/24').masked() == cidr('192.168.0.0/24') && cidr('192.168.0.1/24') != cidr('192.168.0.0/24')",
    "cidr('192.168.0.0/16').prefixLength() == 16 && string(cidr('::/0')) == '::/0'",
    "sets.contains([], []) && !sets.contains([], [1]) && sets.contains([1, 2, 3, 4], [2, 3])",
    "sets.contains([dyn(1), dyn(2.0), dyn(3u)], [dyn(1.0), dyn(2u), dyn(3)]) && sets.contains([[1], [2, 3]], [[2, 3]])",
    "sets.equivalent([], []) && sets.equivalent([1], [1, 1]) && !sets.equivalent([1], [1, 2])",
    "sets.intersects([1], [1, 2]) && !sets.intersects([1], []) && !sets.intersects([dyn(true)], [dyn(1)])",
    "[1, 2, 3].isSorted() && ['a', 'b', 'b', 'c'].isSorted() && ![2.0, 1.0].isSorted() && [].isSorted()",
    "[1, 3].sum() == 4 && [1.0, 3.0].sum() == 4.0 && [].sum() == 0",
    "[1, 3].min() == 1 && [1, 3].max() == 3 && ['b', 'a'].min() == 'a'",
    "[1, 2, 3].includes(2) && ![1, 2, 3].includes(4)",
    "'model-a'.includes('model-a') && !'model-a'.includes('model-b')",
    "isURL('https://user:pass@example.com:80/path?query=val#fragment') && isURL('/absolute-path') && isURL('*')",
    "!isURL('https://a:b:c/') && !isURL('../relative-path') && !isURL('') && !isURL('https://a b/')",
    "!isURL(':x') && !isURL('https://h/%zz') && !isURL('https://[::1') && !isURL('https://[1.2.3.4]/')",
    "isURL('mailto:x') && isURL('ftp://a:b:1/') && !isURL('https://h:port/') && !isURL('https://u^@h/')",
    "url('HTTPS://example.com/').getScheme() == 'https' && url('/path').getScheme() == ''",
    "url('https://example.com:80/').getHost() == 'example.com:80' && url('/path').getHost() == ''",
    "url('https://[::1]:80/').getHost() == '[::1]:80' && url('https://[::1]:80/').getHostname() == '::1'",
    "url('https://[fe80::1%25eth0]/').getHostname() == 'fe80::1%eth0'",
    "url('https://%C3%A9/').getHost() == 'é' && url('//h/p').getHost() == 'h' && url('////p').getHost() == ''",
    "url('https://example.com:80/').getHostname() == 'example.com' && url('https://127.0.0.1/').getHostname() == '127.0.0.1'",
    "url('https://example.com:80/').getPort() == '80' && url('https://example.com/').getPort() == ''",
    "url('https://example.com/path').getEscapedPath() == '/path' && url('https://example.com').getEscapedPath() == ''",
    "url('https://example.com/path with spaces/').getEscapedPath() == '/path%20with%20spaces/'",
    "url('https://h/a%2Fb!').getEscapedPath() == '/a%2Fb!' && url('https://h/a%2Fb!^').getEscapedPath() == '/a/b%21%5E'",
    "url('https://h/path?k1=a&k2=b&k2=c').getQuery() == {'k1': ['a'], 'k2': ['b', 'c']}",
    "url('https://h/?key with spaces=value+with%20spaces').getQuery() == {'key with spaces': ['value with spaces']}",
    "url('https://h/path?').getQuery().size() == 0 && url('https://h/?a;b&%zz&&c').getQuery() == {'c': ['']}",
    "string(url('HTTP://u@h/a b?#f')) == 'http://u@h/a%20b?#f' && url('http://h/ ') == url('http://h/%20')",
    "[1, 2, 3, 4].slice(1, 3) == [2, 3] && [1].slice(1, 1) == []",
    "[[1], [2, 3], [4]].flatten() == [1, 2, 3, 4] && [[[1]], [[2], [3]]].flatten(2) == [1, 2, 3]",
    "[1, 2, 2, 3, 3, 3].distinct() == [1, 2, 3] && ['b', 'b', 'a'].distinct() == ['b', 'a'] && [dyn(1), dyn(1.0)].distinct() == [1]",
    "[5, 3, 1, 2].reverse() == [2, 1, 3, 5] && lists.range(3) == [0, 1, 2] && lists.range(0) == []",
    "[3, 2, 1].sort() == [1, 2, 3] && ['b', 'c', 'a'].sort() == ['a', 'b', 'c'] && [].sort() == []",
    "[1, 2].first().value() == 1 && [1, 2].last().value() == 2 && !([].first().hasValue())",
    "'a1b22'.find('[0-9]+') == '1' && 'ab'.find('(?i)B') == 'b' && 'a'.find('x') == ''",
    "'a1b22'.findAll('[0-9]+') == ['1', '22'] && 'a1b22'.findAll('[0-9]+', 1) == ['1'] && 'a'.findAll('a', 0) == []",
    "'a1b22'.findAll('[0-9]*') == ['', '1', '22'] && 'éa'.findAll('') == ['', '', ''] && 'éé'.find('.') == 'é'",
    "[1, 2, 2].indexOf(2) == 1 && [1, 2, 2].lastIndexOf(2) == 2 && [1].indexOf(3) == -1 && [1].lastIndexOf(3) == -1",
    "'abcb'.indexOf('b') == 1 && 'abcb'.lastIndexOf('b') == 3 && 'abcb'.indexOf('b', 2) == 3 && 'abc'.lastIndexOf('') == 3",
    "[3, 1, 2].sortBy(x, -x) == [3, 2, 1] && ['bb', 'a'].sortBy(x, x.size()) == ['a', 'bb'] && [].sortBy(x, x) == []",
    "[2u, 1u].sortBy(x, x)[0] + 1u == 2u && [[2, 1], [3]].sortBy(x, x.sortBy(y, y)[0]) == [[2, 1], [3]]",
    "[1, 2, 3].all(i, v, v == i + 1) && {'a': 1, 'b': 2}.exists(k, v, k == 'b' && v == 2) && {'a': 1}.existsOne(k, v, v > 0)",
    "[[1, 2], [3]].all(i, row, row.all(j, v, v > 0 && i >= 0)) && ![1].exists(i, v, v > 1)",
    "[5, 6].transformList(i, v, i * v) == [0, 6] && [5, 6].transformList(i, v, i > 0, v) == [6]",
    "[5, 6].transformMap(i, v, v * 2) == {0: 10, 1: 12} && {'a': 1, 'b': 2}.transformMap(k, v, k == 'a', v) == {'a': 1}",
    "{'a': 'x'}.transformMapEntry(k, v, {v: k}) == {'x': 'a'} && [1, 2].transformMapEntry(i, v, v > 1, {v: i}) == {2: 1}",
    "optional.unwrap([optional.of(1), optional.none()]) == [1] && [optional.of(1), optional.none()].unwrapOpt() == [1]",
    "!format.dns1123Label().validate('a-b').hasValue() && format.dns1123Label().validate('A').value()[0].contains('RFC 1123')",
    "format.dns1123Label().validate('a.b').value() == ['must not contain dots'] && format.dns1123Subdomain().validate('a_b').hasValue()",
    "!format.dns1123LabelPrefix().validate('a-').hasValue() && format.dns1123Label().validate('a-').hasValue()",
    "!format.dns1035Label().validate('a1').hasValue() && format.dns1035Label().validate('1a').value()[0].contains('DNS-1035')",
    "!format.qualifiedName().validate('example.com/MyName').hasValue() && format.qualifiedName().validate('/').value().size() == 3",
    "format.qualifiedName().validate('a/b/c').value()[0].contains('DNS subdomain prefix') && !format.labelValue().validate('').hasValue()",
    "!format.uri().validate('https://h/p').hasValue() && format.uri().validate('p').hasValue()",
    "!format.uuid().validate('550E8400-e29b-41d4-a716-446655440000').hasValue() && format.uuid().validate('x').value()[0].contains('UUID')",
    "!format.byte().validate('aGk=').hasValue() && format.byte().validate('aGk').value() == ['invalid base64']",
    "!format.date().validate('0000-02-29').hasValue() && format.date().validate('2021-02-29').value() == ['invalid date']",
    "!format.datetime().validate('2020-02-29T23:59:59.5+01:00').hasValue() && format.datetime().validate('2020-02-29').hasValue()",
    "format.named('uuid').value() == format.uuid() && !format.named('x').hasValue()",
    "''.split('') == [] && ''.split('', 2) == [] && ''.split('a') == [''] && ''.split('a', 1) == ['']",
    "'ab'.split('') == ['a', 'b'] && 'a,b,c'.split(',', 2) == ['a', 'b,c'] && 'a'.split(',', 0) == [] && 'a-b'.split('-')[1] == 'b'",
    "'%s %d'.format(['a', 3]) == 'a 3' && '%x'.format([255]) == 'ff'",
]
WRONG_VALUES = {
    "'a'.find('a' + '(') == ''": "Illegal regex",
    "{'a': 'x', 'b': 'x'}.transformMapEntry(k, v, {v: k}) == {}": "insert failed: key x already exists",
    "[dyn(1), dyn('a')].sortBy(x, x) == []": "list elements must have the same type",
    "ip('127.0.0.256').family() == 4": "IP Address `127.0.0.256` parse error",
    "ip('fe80::1%eth0').family() == 6": "with zone value is not allowed",
    "ip('::ffff:1.2.3.4').family() == 6": "IPv4-mapped IPv6 address `::ffff:1.2.3.4` is not allowed",
    "cidr('192.168.0.0/33').prefixLength() == 1": "network address `192.168.0.0/33` parse error",
    "cidr('10.0.0.0/8').containsIP('x')": "IP Address `x` parse error",
    "quantity('1').isLoopback()": "no such overload: not an IP address",
    "ip('1.2.3.4').prefixLength() == 1": "no such overload: not a network",
    "[].min() == 1": "min called on empty list",
    "[9223372036854775807, 1].sum() == 0": "integer overflow",
    "[semver('9.0.0'), semver('10.0.0')].max() == semver('9.0.0')": "cannot be compared",
    "[quantity('9'), quantity('10')].isSorted()": "cannot be compared",
    "[quantity('1'), quantity('2')].sum() == quantity('12')": "cannot be added",
    "[dyn('a')].sum() == 'a'": "cannot be added",
    "url('../x').getHost() == ''": "URL parse error during conversion from string `../x`",
    "quantity('1').getHost() == ''": "no such overload: not a URL",
    "[1].slice(0, 2) == []": "cannot slice(0, 2), list is length 1",
    "[1].slice(1, 0) == []": "start index must be less than or equal to end index",
    "[1].slice(-1, 0) == []": "negative indexes not supported",
    "[1].flatten(-1) == []": "level must be non-negative",
    "[dyn(1), dyn('a')].sort() == []": "list elements must have the same type",
    "[quantity('1')].sort() == []": "cannot be compared",
    "lists.range(-1) == []": "lists.range: size must be non-negative, got -1",
}
"""Expressions and what their errors say."""


def evaluate(expression: str) -> bool | str:
    try:
        return DeviceSelectors().matches(expression, "d.example.com", DEVICE)
    except CelSelectorError as error:
        return str(error)


@pytest.mark.parametrize("expression", EXAMPLES)
def test_the_libraries_examples(expression: str) -> None:
    assert (evaluate(expression), evaluate(f"!({expression})")) == (True, False)


@pytest.mark.parametrize(("expression", "message"), WRONG_VALUES.items())
def test_a_wrong_value_is_an_error(expression: str, message: str) -> None:
    answer = evaluate(expression)

    assert isinstance(answer, str)
    assert answer.startswith("CEL runtime error")
    assert message in answer


def test_comparing_long_lists_costs_the_product_of_their_lengths_and_is_refused() -> None:
    def compared(count: int) -> str:
        items = ",".join(str(number) for number in range(count))
        return f"sets.contains([{items}],[{items}])"

    short, long = (DeviceSelectors().operations(compared(count)) for count in (25, 50))

    assert long - EVALUATION > 3 * (short - EVALUATION)
    assert evaluate(compared(50)) is True
    assert "use shorter lists" in str(evaluate(compared(350)))


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("'%s'.format([['a']]) == ''", "policysched formats no lists"),
        ("'%f'.format([1234.5]) == ''", "policysched formats no lists, maps, doubles"),
        ("'%s'.format([quantity('1')]) == 'q1'", "values of Kubernetes' types"),
        ("[duration('1s')].sum() == duration('1s')", "values that cannot be added"),
    ],
)
def test_what_is_missing_is_said(expression: str, message: str) -> None:
    answer = str(evaluate(expression))

    assert answer.startswith("CEL runtime error")
    assert message in answer


@pytest.mark.parametrize("asked", ["type([1u, 2u].max()) == uint", "type([uint(1)].reverse()[0]) == uint"])
def test_the_type_of_a_uint_that_a_function_on_a_list_returns_is_unknown(asked: str) -> None:
    assert evaluate(asked) == (
        "CEL compile error: policysched does not know the type of a uint that a function on a list returns"
    )
    assert evaluate("[1u, 2u].max() == 2u") is True
    assert evaluate("type(1u) == uint") is True
    assert evaluate("type([1, 2].max()) == int") is True


def test_macros_with_two_variables_nest_up_to_a_limit() -> None:
    def nested(depth: int, plain: int = 0) -> str:
        return "[1].all(v, " * plain + "[1].all(i, v, " * depth + "true" + ")" * (plain + depth)

    assert evaluate(nested(8)) is True
    assert "more than 8 calls" in str(evaluate(nested(9)))
    assert (
        evaluate(nested(8, plain=20))
        == "CEL compile error: compilation failed: macros with two variables and sortBy are nested too deeply"
    )


@pytest.mark.parametrize(
    "named",
    [
        "cel.bind(a, 'x', a == 'x')",
        "cel.bind(a, ['x'], cel.bind(b, 'y', b == 'y' && a.size() == 1))",
        "optional.of('x').optMap(a, a == 'x').value()",
        "optional.of('x').optFlatMap(a, optional.of(a == 'x')).value()",
        "'%s'.format(['x']) == 'x'",
        "'x,y'.split(',') == ['x', 'y']",
    ],
)
@pytest.mark.parametrize("ends_early", ["[3, 1].all(v, v == 2) || {}", "[3, 1].exists(v, v == 3) && {}"])
def test_a_named_value_is_not_that_of_a_loop_that_ended_early(ends_early: str, named: str) -> None:
    assert evaluate(ends_early.format(named)) is True


def test_without_re2_a_search_is_an_error_and_other_selectors_are_evaluated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)

    assert "need the package google-re2, which is not installed" in str(evaluate("'a'.find('a') == 'a'"))
    assert evaluate("[1].indexOf(1) == 0") is True


def test_long_urls_and_ranges_are_refused_before_they_are_evaluated() -> None:
    long = "a&" * 4000

    for expression in (
        f"url('https://h/?{long}').getQuery().size() > 0",
        "lists.range(10000).all(i, i >= 0)",
        "lists.range(size(device.driver)).size() > 0",
        f"lists.range(300).map(i, url('https://h/{'^' * 60}')).size() > 0",
    ):
        assert "for one device, more than the limit" in str(evaluate(expression)), expression
    assert evaluate("lists.range(100).all(i, i < 100)") is True
