"""Features of kube-scheduler's default profile that no built-in supports. `show` and the docs
print this list.

A pod that uses one stays pending with a message (`Pod.uncovered`, or a filter's own).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UnsupportedFeature:
    """`plugin` is the name in kube-scheduler; `usage` names the fields by which a pod uses the
    feature. `api_fields` are fields that nothing reads, each with the name of its API type.
    """

    plugin: str
    usage: str
    effect: str = "the pod stays pending"
    api_fields: tuple[str, ...] = ()

    @property
    def description(self) -> str:
        return f"{self.plugin}: {self.usage}: {self.effect}"


UNSUPPORTED_FEATURES: tuple[UnsupportedFeature, ...] = (
    UnsupportedFeature(
        "DynamicResources",
        "CEL selectors of devices with `format` of a list, map, double, duration or bytes, with the `sum` of durations, with a "
        "time zone that is not a constant, "
        "or with `type`, a uint and a function on a list together; "
        "expressions nested deeper than 32, and macros of two variables and `sortBy` nested deeper than about 10",
        "every node is rejected; the reason names the selector and what is missing",
    ),
    UnsupportedFeature(
        "DynamicResources",
        "CEL selectors that may take more than 5 ms for one device, that have more than 750 names, values, operators and brackets (texts count as one), and more than 128 different ones of a pod",
        "the pod stays pending; the reason names the selector and the limit",
    ),
    UnsupportedFeature(
        "DynamicResources",
        "CEL selectors of devices on a platform for which cel-expr-python and google-re2 have no wheel, such as musl",
        "the pod stays pending; the reason names the missing package",
    ),
    UnsupportedFeature(
        "DynamicResources", "spec.resourceClaims of an unknown kind (neither a claim nor a template)"
    ),
    UnsupportedFeature(
        "DynamicResources",
        "devices with nodeAllocatableResources (feature gate DRANodeAllocatableResources)",
        "their node is rejected; the reason names the device",
    ),
    UnsupportedFeature(
        "DynamicResources",
        "ResourceSlices with compatibilityGroups or skipNodeOperations (feature gates DRADeviceCompatibilityGroups and "
        "DRAOptionalNodeOperations)",
        "their pool counts as incomplete, and none of its devices is allocated",
    ),
    UnsupportedFeature(
        "DynamicResources",
        "requests with derivedAttributes (feature gate DRADerivedAttributes)",
        "the pod stays pending; the message names the request",
    ),
    UnsupportedFeature(
        "NodeResourcesFit",
        "preemption for a pod whose resize in place is deferred (feature gate "
        "InPlacePodVerticalScalingSchedulerPreemption)",
        "no pod is evicted for it",
        ("core.NodeSpec.podPreemptionPolicy",),
    ),
    UnsupportedFeature(
        "DynamicResources",
        "device attributes that are lists (feature gate DRAListTypeAttributes)",
        "a selector over such a device fails; the reason names the attribute",
        (
            "resource.DeviceAttribute.bools",
            "resource.DeviceAttribute.ints",
            "resource.DeviceAttribute.strings",
            "resource.DeviceAttribute.versions",
        ),
    ),
    UnsupportedFeature("TaintToleration", "spec.tolerations with the operator Gt or Lt"),
    UnsupportedFeature("GangScheduling", "spec.workloadRef (Kubernetes 1.35)"),
    UnsupportedFeature("GangScheduling", "a PodGroup that belongs to a CompositePodGroup"),
    UnsupportedFeature("GangScheduling", "a PodGroup with spec.resourceClaims (DRAWorkloadResourceClaims)"),
)
