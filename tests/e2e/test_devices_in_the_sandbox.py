"""Device claims in the sandbox, from the template to the end of the pod."""

import asyncio
from typing import Any

from policysched.sandbox.controllers import Controllers
from tests.devices import FINALIZER, asking, claim_spec, class_manifest, gpu, new, slice_manifest
from tests.kube.world import World, on_virtual_time, running, until

Json = dict[str, Any]


def templated(world: World, name: str) -> None:
    spec = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]}
    world.add_pod(name, spec=spec)


def claims(world: World) -> list[Json]:
    return list(world.local.list("resourceclaims", "default"))


def test_a_claim_is_created_for_its_pod_and_deleted_with_it() -> None:
    async def scenario() -> None:
        world = World()
        world.local.create("deviceclasses", "", class_manifest())
        world.local.create("resourceslices", "", new(slice_manifest("a", gpu("g0"))))
        async with running(Controllers(world.local).run()):
            templated(world, "web")
            await asyncio.sleep(1)
            template = {"metadata": {"name": "one-gpu"}, "spec": {"spec": claim_spec(asking())}}
            world.local.create("resourceclaimtemplates", "default", template)
            await until(lambda: world.pod("web")["status"].get("resourceClaimStatuses"), "the claim's name")
            (made,) = claims(world)
            ((named,),) = [world.pod("web")["status"]["resourceClaimStatuses"]]
            world.local.update("resourceclaims", made, protected)
            user = {"resource": "pods", "name": "web", "uid": world.pod("web")["metadata"]["uid"]}
            world.local.set_status("resourceclaims", made, allocation={"devices": {}}, reservedFor=[user])
            await asyncio.sleep(1)
            held = claims(world)[0]["status"]
            world.local.delete("pods", world.pod("web"), grace_period_s=0)
            await until(lambda: not claims(world), "the claim to go with its pod")

        assert named == {"name": "gpu", "resourceClaimName": made["metadata"]["name"]}
        assert made["metadata"]["ownerReferences"][0]["name"] == "web"
        assert held["reservedFor"] == [user]

    on_virtual_time(scenario)


def test_a_shared_claim_releases_its_devices_after_its_last_pod() -> None:
    async def scenario() -> None:
        world = World()
        async with running(Controllers(world.local).run()):
            for name in ("web", "other"):
                world.add_pod(name)
            users = [
                {"resource": "pods", "name": name, "uid": world.pod(name)["metadata"]["uid"]}
                for name in ("web", "other")
            ]
            body = {"metadata": {"name": "c", "finalizers": [FINALIZER]}, "spec": claim_spec()}
            claim = world.local.create("resourceclaims", "default", body)
            world.local.set_status("resourceclaims", claim, allocation={"devices": {}}, reservedFor=users)
            world.local.set_status("pods", world.pod("web"), phase="Succeeded")
            await asyncio.sleep(1)
            half = dict(claims(world)[0]["status"])
            world.local.delete("pods", world.pod("other"), grace_period_s=0)
            await asyncio.sleep(1)

        (left,) = claims(world)
        assert half == {"allocation": {"devices": {}}, "reservedFor": users[1:]}
        assert not left.get("status")
        assert not left["metadata"].get("finalizers")

    on_virtual_time(scenario)


def protected(claim: Json) -> Json:
    claim["metadata"]["finalizers"] = [FINALIZER]
    return claim
