# docker build -t policysched:0.1.0 .
FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY grammar ./grammar
COPY policies ./policies
COPY policysched ./policysched
RUN python -m venv /opt/policysched \
 && /opt/policysched/bin/pip install --no-cache-dir --disable-pip-version-check . \
 && /opt/policysched/bin/policysched --version

FROM python:3.11-slim
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
COPY --from=build /opt/policysched /opt/policysched
USER 65532:65532
EXPOSE 10259
ENTRYPOINT ["/opt/policysched/bin/policysched"]
CMD ["run", "--help"]
