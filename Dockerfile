# docker build -t policysched:0.1.0 .
#
# The tag of the base image moves with Python's patch releases and Debian's security updates, so that a rebuild has them. For a
# build that can be repeated give the digest: --build-arg BASE=python:3.11-slim@sha256:...
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE requirements.lock ./
COPY grammar ./grammar
COPY policies ./policies
COPY policysched ./policysched
RUN python -m venv /opt/policysched \
 && /opt/policysched/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r requirements.lock \
 && /opt/policysched/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps . \
 && /opt/policysched/bin/policysched --version

FROM ${BASE}
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/
COPY --from=build /opt/policysched /opt/policysched
USER 65532:65532
EXPOSE 10259
ENTRYPOINT ["/opt/policysched/bin/policysched"]
CMD ["run", "--help"]
