#!/bin/bash
# Run once, as root, when an instance is launched. template.yaml has this text as the launch template's user data, and fills
# in Artifact, QueueURL, Region, Group, Hook and HookTimeout.
# shellcheck disable=SC2154
set -euo pipefail

# The artifact is a tar archive with the program (worker) and its unit (worker.service); see README.md.
work=$(mktemp -d)
aws s3 cp --region "${Region}" "${Artifact}" "$work/artifact.tar.gz"
tar -xzf "$work/artifact.tar.gz" -C "$work" worker worker.service
install -m 0755 "$work/worker" /usr/local/bin/worker
install -m 0644 "$work/worker.service" /etc/systemd/system/worker.service
rm -rf "$work"

# STOP_TIMEOUT is the unit's TimeoutStopSec.
cat >/etc/worker.env <<ENV
AWS_REGION=${Region}
QUEUE_URL=${QueueURL}
GROUP=${Group}
HOOK=${Hook}
HOOK_TIMEOUT=${HookTimeout}s
STOP_TIMEOUT=90s
ON_REBALANCE=drain
ENV

systemctl daemon-reload
systemctl enable --now worker.service
