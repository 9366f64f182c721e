#!/usr/bin/env bash
# What the container runs: an executor, when Spark asks for one, else the command that it is given.
# Spark says all that an executor has to know in the environment.
set -euo pipefail

if [[ "${1:-}" != executor ]]; then
  exec "$@"
fi

options=()
while IFS= read -r -d '' entry; do
  if [[ "$entry" == SPARK_JAVA_OPT_* ]]; then
    options+=("${entry#*=}")
  fi
done < <(env -0 | sort -z -t_ -k4 -n)

exec "${JAVA_HOME:+$JAVA_HOME/bin/}java" ${options[@]+"${options[@]}"} \
  -Xms"$SPARK_EXECUTOR_MEMORY" -Xmx"$SPARK_EXECUTOR_MEMORY" \
  -cp "${SPARK_CONF_DIR:+$SPARK_CONF_DIR:}$SPARK_HOME/jars/*" \
  org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
  --driver-url "$SPARK_DRIVER_URL" \
  --executor-id "$SPARK_EXECUTOR_ID" \
  --cores "$SPARK_EXECUTOR_CORES" \
  --app-id "$SPARK_APPLICATION_ID" \
  --hostname "$SPARK_EXECUTOR_POD_IP" \
  --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
  --podName "$SPARK_EXECUTOR_POD_NAME"
