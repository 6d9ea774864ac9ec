# The controller. Build: docker build -t lark-controller .   (nothing in it is a secret)
FROM python:3.12-slim-bookworm AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/lark
WORKDIR /src
COPY requirements.txt ./
RUN /opt/lark/bin/pip install --require-hashes -r requirements.txt
COPY pyproject.toml requirements.in requirements-own.in README.md LICENSE ./
COPY lark_common lark_common
COPY lark_controller lark_controller
COPY migrations migrations
RUN /opt/lark/bin/pip install --no-deps --no-build-isolation ./lark_common .

FROM python:3.12-slim-bookworm
RUN groupadd --system --gid 10001 lark \
    && useradd --system --uid 10001 --gid lark --home-dir /var/lib/lark --shell /usr/sbin/nologin lark \
    && install -d -o lark -g lark -m 0750 /var/lib/lark \
    && install -d -m 0755 /etc/lark
COPY --from=build /opt/lark /opt/lark
COPY etc/policy.yaml /etc/lark/policy.yaml
ENV PATH=/opt/lark/bin:$PATH PYTHONUNBUFFERED=1
USER lark
WORKDIR /var/lib/lark
VOLUME /var/lib/lark
# OpenFlow and REST
EXPOSE 6653 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 \
    CMD ["python", "-m", "lark_controller.cli.health"]
ENTRYPOINT ["lark"]
CMD ["run"]
