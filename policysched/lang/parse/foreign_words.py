"""What to write for words of other languages and tools, by the place where they stand.

Newcomers know kube-scheduler's configuration, Kueue, Volcano, CEL, Rego, SQL, PromQL and Python. To answer one more of
their words, add it to a table here: the help line of the error is then that text.
"""

_TEXT_FUNCTION = (
    'there are no regular expressions; `starts_with(node.name, "gpu-")` tests the beginning of a text'
)
_NUMBER = 'declare an input to parse a text as a number: `input NAME: int = pod.labels["KEY"] default 0 invalid default`'
_CHANCE = "policies have no random numbers; `bucket(pod.name, 100) < 10` selects a stable tenth of the pods"
_LENGTH = (
    "count pods by `count(pods on node where ...)`, and the elements of a declared list by `count(LIST)`"
)
_FALLBACK = "write `VALUE else FALLBACK`"
_PRESENCE = 'write `has VALUE`, for example `has node.labels["zone"]`'
_CLOCK = 'for hours and days write `window("Mon-Fri 08:00-24:00", "Europe/Zurich")`; `now` is the time'
_CASE = 'upper and lower case cannot be converted; list the spellings: `x in ["a", "A"]`'
_LITERAL = "write the value as a literal: `5m`, `1Gi`, `100m`, `85%`"
_LOOP = "there are no loops; `any(LIST where ...)`, `count(LIST where ...)` and `sum(VALUE over LIST)` read a list"
QUERY_HELP = (
    "a Prometheus query is a text in a `metric`, which rules then read by its name: "
    '`metric NAME: ratio { query = "..." unit = "1" join = instance every = 15s stale = 90s }`'
)

_DECLARE = "a constant is `let NAME: TYPE = VALUE`"
_FILTER = "write `filter NAME require CONDITION`, or `reject CONDITION`"
_SCORE = "write `score NAME weight 1 higher VALUE normalize range(LOW, HIGH)`, or `lower VALUE`, or `prefer CONDITION`"
_CONFIGURATION = (
    "a policy is not YAML; `policysched import-config FILE` translates kube-scheduler's configuration"
)

STATEMENT_WORDS = {
    **dict.fromkeys(("const", "var", "val", "def", "set", "define", "local"), _DECLARE),
    **dict.fromkeys(("rule", "predicate", "deny", "allow", "constraint", "require", "reject", "violation", "assert", "default"), _FILTER),
    **dict.fromkeys(("prefer", "higher", "lower", "prioritize", "priority"), _SCORE),
    **dict.fromkeys(("import", "from", "use"), "write `include kube_default`, or `include \"FILE.policy\"`"),
    **dict.fromkeys(("apiversion", "kind", "profiles", "plugins", "spec", "metadata", "tiers", "actions", "tolerations", "affinity", "nodeselector", "topologyspreadconstraints", "pluginconfig"), _CONFIGURATION),
    **dict.fromkeys(("package", "module"), "begin with `policy NAME version 1`"),
    **dict.fromkeys(("if", "when", "unless"), "for rules that apply to some pods write `layer NAME when CONDITION { ... }`, or a `when` in each rule"),
    **dict.fromkeys(("select", "where"), "a policy is not a query: " + _FILTER),
    **dict.fromkeys(("for", "while", "foreach"), _LOOP),
    **dict.fromkeys(("podgroup", "group"), "write `gang by pod.labels[\"KEY\"] { min = 2  timeout = 5m }`"),
    **dict.fromkeys(("clusterqueue", "resourceflavor"), "for amounts of teams write `quota NAME by KEY { ... }`"),
    **dict.fromkeys(("sort", "orderby", "order_by"), "write `queue by KEY desc, ...`"),
    **dict.fromkeys(("evict", "preempt", "victims"), "write `preemption { victims = CONDITION }`"),
    **dict.fromkeys(("disable", "remove", "delete"), "write `drop NAME`"),
    "weight": "write `reweight NAME 2`",
}  # fmt: skip
"""By the lower-case word that a line begins with."""

CLAUSE_WORDS = {
    **dict.fromkeys(("if", "where", "for", "on"), "write `when CONDITION` before `require`, `reject` or the value"),
    "unless": "write `when not (CONDITION)`",
    **dict.fromkeys(("message", "msg", "reason", "because", "error", "with"), "write `says \"text\"`"),
    **dict.fromkeys(("deny", "forbid", "exclude", "assert", "must", "allow", "check"), "write `require CONDITION` or `reject CONDITION`"),
    **dict.fromkeys(("maximize", "max", "highest", "value", "by"), "write `higher VALUE`"),
    **dict.fromkeys(("minimize", "min", "lowest"), "write `lower VALUE`"),
    "priority": "write `weight 5`",
    "scale": "write `normalize range(LOW, HIGH)`",
}  # fmt: skip
"""By the lower-case word that stands in a rule where a clause can begin."""

OPERATOR_WORDS = {
    "is": "write `==`, or `not has x` for an absent value",
    "equals": "write `==`",
    "eq": "write `==`",
    "ne": "write `!=`",
    "lt": "write `<`",
    "gt": "write `>`",
    "between": "write `x >= LOW and x <= HIGH`",
    **dict.fromkeys(("like", "ilike", "matches", "contains", "startswith", "endswith"), _TEXT_FUNCTION),
    **dict.fromkeys(("for", "foreach"), _LOOP),
    "xor": "write `(a or b) and not (a and b)`",
    **dict.fromkeys(("mod", "div"), "there is no remainder; write `floor(a / b else 0)` for whole parts"),
    "exists": _PRESENCE,
}
"""By the lower-case word that stands where an operator can."""

CHARACTERS = {
    ";": "remove it; a statement ends with its line",
    "~": _TEXT_FUNCTION,
    "?": "write `if CONDITION then VALUE else VALUE`",
    "`": 'write names without quotes, and texts in `"`',
    "^": "there are no powers; multiply: `x * x`",
    "@": "remove it; names stand alone",
    "$": "remove it; names stand alone",
    "\\": "remove it; a statement may go on in the next line",
    "«": 'write strings in `"`',
    "»": 'write strings in `"`',
    "…": "write `..`",
}

FUNCTION_WORDS = {
    "count": "`count` takes pods or a list of records: `count(pods on node where ...)`; to ask for one entry of "
    'another list write `"dedicated" in node.taints`',
    **dict.fromkeys(("random", "rand", "hash"), _CHANCE),
    **dict.fromkeys(("int", "float", "number", "to_number", "parse_int"), _NUMBER),
    **dict.fromkeys(
        ("matches", "match", "regex", "re_match", "contains", "startswith", "startsWith", "endswith", "endsWith", "like", "glob"),
        _TEXT_FUNCTION,
    ),
    **dict.fromkeys(("size", "len", "length"), _LENGTH),
    **dict.fromkeys(("coalesce", "ifnull", "nvl", "getattr", "get", "orValue", "default"), _FALLBACK),
    **dict.fromkeys(("exists", "defined", "isset", "is_null", "isnull"), _PRESENCE),
    **dict.fromkeys(("hour", "time", "date", "weekday", "time_now", "day"), _CLOCK),
    **dict.fromkeys(("lower", "upper", "lowerAscii", "toLower"), _CASE),
    **dict.fromkeys(("quantity", "duration", "resource", "timestamp"), _LITERAL),
    **dict.fromkeys(("filter", "map", "all", "exists_one", "some", "every"), _LOOP),
    **dict.fromkeys(("avg", "average", "mean", "stddev"), "write `mean of VALUE over nodes`, or `stddev of`"),
    **dict.fromkeys(("pow", "power"), "multiply: `x * x`; `exp(x)` is a power of e"),
    **dict.fromkeys(("concat", "format", "sprintf", "str", "string"), 'texts cannot be built; a message shows values: `says "has {node.pods}"`'),
    **dict.fromkeys(("rate", "irate", "increase", "avg_over_time", "max_over_time", "min_over_time", "quantile", "histogram_quantile", "topk", "label_replace"), QUERY_HELP),
}  # fmt: skip
"""By the name of a function."""

ATTRIBUTE_WORDS = {
    "pod.age": "write `pod.waited` for the time in the queue, or `now - pod.created` for the age",
    **{f"{owner}.age": f"write `now - {owner}.created`" for owner in ("node", "victim")},
    "node.cpu": "write `node.free.cpu`, `node.requested.cpu` or `node.allocatable.cpu`",
    "node.memory": "write `node.free.memory`, `node.requested.memory` or `node.allocatable.memory`",
    **dict.fromkeys(("node.load", "node.usage", "node.utilization", "node.cpu_usage", "node.memory_usage"),
                    "what nodes use is measured: " + QUERY_HELP),
    "pod.cpu": "write `pod.requests.cpu`",
    "pod.memory": "write `pod.requests.memory`",
    "pod.image": 'write `"NAME" in pod.images`',
    "pod.node": "the pod is on no node yet; rules read the node that is evaluated as `node`",
    "pod.ready": "the pod is on no node yet; a counted pod has `other.ready`, a victim `victim.ready`",
    "pod.nodeSelector": "`include kube_default` has the filter `node_affinity`, which honours it",
    "pod.affinity": "`include kube_default` has the filters `node_affinity` and `inter_pod_affinity`",
    "node.zone": 'write `node.labels["topology.kubernetes.io/zone"]`',
    "node.region": 'write `node.labels["topology.kubernetes.io/region"]`',
    "node.hostname": "write `node.name`",
    "pod.priorityClassName": "write `pod.priority`, its number",
    "pod.schedulerName": "write `pod.scheduler`",
    "pod.serviceAccountName": "write `pod.service_account`",
    "pod.creationTimestamp": "write `pod.created`",
    "node.creationTimestamp": "write `node.created`",
    "node.capacity": "write `node.allocatable`",
    "pod.ownerReferences": "write `pod.owner.kind` or `pod.owner.name`",
    "pod.resources": "write `pod.requests.cpu` or `pod.limits.cpu`",
}  # fmt: skip
"""By the whole attribute, without Kubernetes' `metadata`, `spec` and `status`."""

PARAMETER_WORDS = {
    **dict.fromkeys(("minMember", "minAvailable", "min_member", "min_available", "minCount", "size", "members"), "min"),
    **dict.fromkeys(("scheduleTimeoutSeconds", "ttl", "wait", "deadline"), "timeout"),
    **dict.fromkeys(("interval", "period", "scrape_interval", "step"), "every"),
    **dict.fromkeys(("expr", "promql", "expression"), "query"),
    **dict.fromkeys(("ttl", "max_age", "staleness"), "stale"),
    **dict.fromkeys(("on", "match", "by"), "join"),
    **dict.fromkeys(("where", "victim", "select"), "victims"),
    **dict.fromkeys(("total", "limit"), "capacity"),
    **dict.fromkeys(("topologyKey", "topology_key"), "topology"),
}  # fmt: skip
"""The parameter that is meant, by the name in other tools."""

TYPE_WORDS = {
    **dict.fromkeys(("percent", "percentage"), "ratio"),
    **dict.fromkeys(("memory", "size", "storage", "quantity"), "bytes"),
    **dict.fromkeys(("integer", "number", "long"), "int"),
    **dict.fromkeys(("double", "real", "decimal"), "float"),
    **dict.fromkeys(("str", "text", "varchar"), "string"),
    **dict.fromkeys(("cores", "cpus", "millicores"), "cpu"),
    **dict.fromkeys(("rate", "bitrate", "bps"), "bandwidth"),
    **dict.fromkeys(("time", "interval", "seconds"), "duration"),
    **dict.fromkeys(("datetime", "date", "instant"), "timestamp"),
    "boolean": "bool",
}
"""The type that is meant, by the name in other languages."""

NULL_WORDS = frozenset({"null", "Null", "NULL", "None", "nil", "undefined"})

NAME_WORDS = {
    **dict.fromkeys(("True", "TRUE", "yes"), "write `true`"),
    **dict.fromkeys(("False", "FALSE"), "write `false`"),
    **dict.fromkeys(
        NULL_WORDS, "to test whether a value is absent, write `not has x` instead of `x == null`"
    ),
    **dict.fromkeys(("priority",), "write `pod.priority`"),
}
"""Constants and names, where they are read as a value."""

OWNER_WORDS = {
    "now": 'for hours and days write `window("Mon-Fri 08:00-24:00", "Europe/Zurich")`',
    **dict.fromkeys(("self", "this", "object", "task", "job"), "the pod to be placed is `pod`"),
    **dict.fromkeys(("nodeInfo", "host", "candidate", "target"), "the node that is evaluated is `node`"),
    **dict.fromkeys(("request", "input", "data", "params"), "attributes belong to `pod`, `node` or `namespace`; parameters are `param NAME: TYPE = DEFAULT`"),
}  # fmt: skip
"""By the first name of an unknown attribute."""
