#!/usr/bin/env bash
# Stock Kafka clients against a broker that runs already, ours or Kafka's own (../kafka/run-kafka.sh).
#
#   run-all.sh HOST:PORT [--moments] [--tls DIR] [--sasl MECHANISM] [LANG…]      LANG: java java-groups java-share go sarama node confluent kafka-python kcat console
#
# Each client is installed from its own registry at a pinned version, and built in the cache directory
# (FREEZEFRAME_CLIENTS_CACHE, else below XDG_CACHE_HOME), so the repository stays clean. --moments also reads topics as
# of a moment, which Kafka itself does not know; --tls speaks TLS, with the certificates of ../zookeeper-clients/make-certificates.sh in DIR; --sasl
# logs in by MECHANISM (PLAIN, SCRAM-SHA-256, SCRAM-SHA-512) as FREEZEFRAME_SASL_USER with FREEZEFRAME_SASL_PASSWORD (neither with console). Every program takes less than a minute, console less than two, and
# java-groups and java-share (groups whose members hear of changes every five seconds) less than four; all of their output goes to *.log in the cache directory. The last line counts steps.
set -uo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/programs.sh"
all=(java java-groups java-share go sarama node confluent kafka-python kcat console)

bootstrap='' moments='' is_directory='' is_mechanism='' chosen=()
for argument in "$@"; do
    if [[ -n $is_directory ]]; then
        is_directory=''
        FREEZEFRAME_TLS_DIRECTORY=$(realpath "$argument")
        export FREEZEFRAME_TLS_DIRECTORY
        continue
    fi
    if [[ -n $is_mechanism ]]; then
        is_mechanism=''
        export FREEZEFRAME_SASL_MECHANISM=$argument
        continue
    fi
    case $argument in
        --moments) moments=--moments ;;
        --tls) is_directory=1 ;;
        --sasl) is_mechanism=1 ;;
        *:*) bootstrap=$argument ;;
        python) chosen+=(confluent kafka-python) ;;
        *)
            if [[ " ${all[*]} " != *" $argument "* ]]; then
                echo "run-all.sh: no client named $argument; there are ${all[*]}" >&2
                exit 2
            fi
            chosen+=("$argument")
            ;;
    esac
done
if [[ -z $bootstrap ]]; then
    echo "usage: run-all.sh HOST:PORT [--moments] [--tls DIR] [--sasl MECHANISM] [LANG…]" >&2
    exit 2
fi
[[ ${#chosen[@]} -gt 0 ]] || chosen=("${all[@]}")
run=$(date +%s)-$$

for client in "${chosen[@]}"; do
    run_client "$client" "$client" --bootstrap "$bootstrap" --run "$run" $moments
done
print_table
