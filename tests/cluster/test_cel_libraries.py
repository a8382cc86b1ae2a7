"""Addresses, networks, sets and lists in selectors mean what Kubernetes' CEL libraries say.

The examples are those in the documentation of the libraries (`ip.go`, `cidr.go`, `lists.go` of k8s.io/apiserver v0.37.2,
`ext/README.md` of cel-go), and edges of `net/netip`.
"""

import pytest

from policysched.cluster.devices.cel_selectors import CelSelectorError, DeviceSelectors
from policysched.cluster.devices.selector_cost import EVALUATION
from policysched.model.devices import Device

DEVICE = Device("d", {}, {})


def evaluate(expression: str) -> bool | str:
    try:
        return DeviceSelectors().matches(expression, "d.example.com", DEVICE)
    except CelSelectorError as error:
        return str(error)


@pytest.mark.parametrize(
    "expression",
    [
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
        "sets.contains([1, 2.0, 3u], [1.0, 2u, 3]) && sets.contains([[1], [2, 3]], [[2, 3.0]])",
        "sets.equivalent([], []) && sets.equivalent([1], [1, 1]) && !sets.equivalent([1], [1, 2])",
        "sets.intersects([1], [1, 2]) && !sets.intersects([1], []) && !sets.intersects([true], [1])",
        "[1, 2, 3].isSorted() && ['a', 'b', 'b', 'c'].isSorted() && ![2.0, 1.0].isSorted() && [].isSorted()",
        "[1, 3].sum() == 4 && [1.0, 3.0].sum() == 4.0 && [].sum() == 0",
        "[1, 3].min() == 1 && [1, 3].max() == 3 && ['b', 'a'].min() == 'a'",
        "[1, 2, 3].includes(2) && ![1, 2, 3].includes(4)",
        "'model-a'.includes('model-a') && !'model-a'.includes('model-b')",
    ],
)
def test_the_libraries_examples(expression: str) -> None:
    assert (evaluate(expression), evaluate(f"!({expression})")) == (True, False)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("ip('127.0.0.256').family() == 4", "IP Address `127.0.0.256` parse error"),
        ("ip('fe80::1%eth0').family() == 6", "with zone value is not allowed"),
        ("ip('::ffff:1.2.3.4').family() == 6", "IPv4-mapped IPv6 address `::ffff:1.2.3.4` is not allowed"),
        ("cidr('192.168.0.0/33').prefixLength() == 1", "network address `192.168.0.0/33` parse error"),
        ("cidr('10.0.0.0/8').containsIP('x')", "IP Address `x` parse error"),
        ("quantity('1').isLoopback()", "no such overload: not an IP address"),
        ("ip('1.2.3.4').prefixLength() == 1", "no such overload: not a network"),
        ("[].min() == 1", "min called on empty list"),
        ("[9223372036854775807, 1].sum() == 0", "integer overflow"),
        ("[semver('9.0.0'), semver('10.0.0')].max() == semver('9.0.0')", "cannot be compared"),
        ("[quantity('9'), quantity('10')].isSorted()", "cannot be compared"),
        ("[quantity('1'), quantity('2')].sum() == quantity('12')", "cannot be added"),
        ("[dyn('a')].sum() == 'a'", "cannot be added"),
    ],
)
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
    assert "use shorter lists" in str(evaluate(compared(1000)))
