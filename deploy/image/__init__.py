"""The container image, built without a daemon, a registry or root: `make image`.

    debian          Debian's Python and the few libraries that it and the wheels need, nothing else: no shell, no package manager
    dependencies    requirements.lock, by hash
    application     the wheel of this checkout

Each is one layer. The files of a layer are sorted and have one date, so that the same inputs give the same digest. The layers
of other processors are built on this one: nothing of them is run.

    debian.py          the first layer
    site_packages.py   the other two
    layers.py          a folder becomes a layer; layers are cached by their inputs
    oci.py             layers become an OCI archive, which `docker load`, `skopeo copy` and `podman load` read
"""
