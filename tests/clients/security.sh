#!/usr/bin/env bash
# Stock Kafka clients over TLS and SASL, with rules that allow and rules that do not.
#
#   security.sh [--kafka PORT] [LANG…]      LANG: java go node confluent kafka-python
#
# Starts one server (FREEZEFRAME_BINARY, else target/release/freezeframe) with certificates, users, tokens and rules that it
# makes, and runs each client's program once over all cases. With --kafka the server is a real Kafka (../kafka/run-kafka.sh)
# at four ports from PORT on; users and rules are added by our commands all the same. A case is a line of a file:
#
#   EXPECTED NAME HOST:PORT MECHANISM TRUST CERTIFICATE USER SECRET      a - stands for none
#
# EXPECTED is `served` (the client does what its rules allow, and is refused the rest) or `refused` (its login is). TRUST
# and CERTIFICATE name PEM files beside the cases, TRUST.pem and CERTIFICATE.pem (with .crt and .key); SECRET is a file with
# a password or a token. Clients are built as run-all.sh builds them. The last line counts steps.
set -uo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/programs.sh"
all=(java go node confluent kafka-python)
kafka_port=
if [[ ${1:-} == --kafka ]]; then kafka_port=${2:?usage: security.sh --kafka PORT} && shift 2; fi
chosen=("$@")
[[ ${#chosen[@]} -gt 0 ]] || chosen=("${all[@]}")
for client in "${chosen[@]}"; do
    if [[ " ${all[*]} " != *" $client "* ]]; then
        echo "security.sh: no client named $client; there are ${all[*]}" >&2
        exit 2
    fi
done
freezeframe=$(realpath -m "${FREEZEFRAME_BINARY:-$here/../../target/release/freezeframe}")
[[ -x $freezeframe ]] || { echo "security.sh: no server: $freezeframe" >&2; exit 2; }

dir=$(mktemp -d)
server=
stop() {
    if [[ -n $server ]]; then kill "$server" 2>/dev/null; wait "$server" 2>/dev/null; fi
    rm -rf "$dir"
}
trap stop EXIT

# Tokens

base64url() { openssl base64 -A | tr '+/' '-_' | tr -d '='; }

# key_set KEY: the public half of an RSA key, as a JSON Web Key Set
key_set() {
    local modulus
    modulus=$(openssl rsa -in "$1" -noout -modulus | sed 's/.*=//; s/../\\x&/g')
    printf '{"keys":[{"kty":"RSA","kid":"one","use":"sig","alg":"RS256","n":"%s","e":"AQAB"}]}' "$(printf '%b' "$modulus" | base64url)"
}

# token KEY AUDIENCE: a token of the user oauth, for an hour
token() {
    local now signed
    now=$(date +%s)
    signed=$(printf '{"alg":"RS256","typ":"JWT","kid":"one"}' | base64url).$(
        printf '{"sub":"oauth","aud":"%s","iss":"https://id.example","iat":%d,"exp":%d}' "$2" "$now" $((now + 3600)) | base64url)
    printf '%s.%s' "$signed" "$(printf '%s' "$signed" | openssl dgst -sha256 -sign "$1" | base64url)"
}

# The server

"$here/../zookeeper-clients/make-certificates.sh" "$dir"
cp "$dir/elsewhere.crt" "$dir/elsewhere.pem"
# Clients keep back a certificate whose issuer the server does not name. So one that another key signs in that name.
(
    cd "$dir" && ec=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)
    openssl req -x509 "${ec[@]}" -keyout impostor.key -out impostor.crt -days 1 -subj /CN=authority &&
        openssl req "${ec[@]}" -keyout forged.key -out forged.csr -subj /CN=other/O=Frames &&
        openssl x509 -req -in forged.csr -CA impostor.crt -CAkey impostor.key -CAcreateserial -days 1 -out forged.crt &&
        cat forged.crt forged.key >forged.pem
) 2>/dev/null || exit 1
for key in issuer another; do
    openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -out "$dir/$key.key" 2>/dev/null
done
key_set "$dir/issuer.key" >"$dir/keys.json"
token "$dir/issuer.key" kafka >"$dir/oauth.secret"
token "$dir/issuer.key" other >"$dir/other-audience.secret"
token "$dir/another.key" kafka >"$dir/other-signature.secret"
for user in admin plain scram-256 scram-512; do
    openssl rand -base64 18 | tr -d '\n' >"$dir/$user.secret"
done
printf 'not this one' >"$dir/wrong.secret"

# start COMMAND…: runs it in the background until it says where it serves
start() {
    mkfifo "$dir/ready"
    "$@" >"$dir/ready" 2>"$dir/log" &
    server=$!
    read -r -t 60 line <"$dir/ready" || { cat "$dir/log"; exit 1; }
}
# address_of NAME: the address of a listener in that line
address_of() { sed -n "s/.* $1=\([^ ]*\).*/\1/p" <<<"$line"; }

start_freezeframe() {
    cat >"$dir/server.toml" <<END
[server]
data-dir = "$dir/store"
[kafka]
"listeners" = "SSL://127.0.0.1:0,MTLS://127.0.0.1:0,SASL_SSL://127.0.0.1:0"
"listener.security.protocol.map" = "SSL:SSL,MTLS:SSL,SASL_SSL:SASL_SSL"
"ssl.keystore.location" = "$dir/server.pem"
"listener.name.mtls.ssl.truststore.location" = "$dir/trust.pem"
"listener.name.mtls.ssl.client.auth" = "required"
"ssl.principal.mapping.rules" = "RULE:^O=Frames,CN=([a-z]+)\$/certificate-\$1/,DEFAULT"
"sasl.enabled.mechanisms" = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER"
"sasl.oauthbearer.jwks.endpoint.url" = "file://$dir/keys.json"
"sasl.oauthbearer.expected.audience" = "kafka"
"sasl.oauthbearer.expected.issuer" = "https://id.example"
"authorizer.class.name" = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
"super.users" = "User:admin"
"group.initial.rebalance.delay.ms" = 0
END
    start "$freezeframe" serve --config "$dir/server.toml"
    tls=$(address_of kafka) mtls=$(address_of kafka-mtls) sasl=$(address_of kafka-sasl_ssl)
    "$freezeframe" users add admin --data-dir "$dir/store" --password-file "$dir/admin.secret" 2>"$dir/said" || { cat "$dir/said" >&2; exit 1; }
}

# The same settings, where Kafka has the same ones. The broker itself logs in with the server's certificate.
start_kafka() {
    local host=127.0.0.1 login=org.apache.kafka.common.security.
    tls=$host:$((kafka_port + 1)) mtls=$host:$((kafka_port + 2)) sasl=$host:$((kafka_port + 3))
    local controller=$host:$((kafka_port + 10000)) open=PLAINTEXT://$host:$kafka_port,SSL://$tls,MTLS://$mtls,SASL_SSL://$sasl
    JAVA_TOOL_OPTIONS=-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=file://$dir/keys.json \
        start "$here/../kafka/run-kafka.sh" "$dir/store" "$kafka_port" \
        listeners="$open,CONTROLLER://$controller" advertised.listeners="$open" inter.broker.listener.name=MTLS \
        listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SSL:SSL,MTLS:SSL,SASL_SSL:SASL_SSL,CONTROLLER:SSL \
        ssl.keystore.location="$dir/server.pem" ssl.keystore.type=PEM ssl.truststore.location="$dir/trust.pem" ssl.truststore.type=PEM \
        listener.name.mtls.ssl.client.auth=required listener.name.controller.ssl.client.auth=required \
        ssl.principal.mapping.rules='RULE:^O=Frames,CN=([a-z]+)$/certificate-$1/,DEFAULT' \
        authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer \
        super.users='User:admin;User:certificate-localhost' \
        sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER \
        listener.name.sasl_ssl.plain.sasl.jaas.config="${login}plain.PlainLoginModule required user_plain=\"$(<"$dir/plain.secret")\" user_admin=\"$(<"$dir/admin.secret")\";" \
        listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config="${login}scram.ScramLoginModule required;" \
        listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config="${login}scram.ScramLoginModule required;" \
        listener.name.sasl_ssl.oauthbearer.sasl.jaas.config="${login}oauthbearer.OAuthBearerLoginModule required;" \
        listener.name.sasl_ssl.oauthbearer.sasl.server.callback.handler.class="${login}oauthbearer.OAuthBearerValidatorCallbackHandler" \
        sasl.oauthbearer.jwks.endpoint.url="file://$dir/keys.json" sasl.oauthbearer.expected.audience=kafka \
        sasl.oauthbearer.expected.issuer=https://id.example
}

if [[ -n $kafka_port ]]; then start_kafka; else start_freezeframe; fi

# Users and rules: each principal has the topics and the groups that begin with its name, and sees one topic more.

as_admin() {
    "$freezeframe" "$@" --bootstrap "$sasl" --tls-trust "$dir/trust.pem" --sasl-user admin --sasl-password-file "$dir/admin.secret" --sasl-mechanism PLAIN
}
# is_empty TOPIC: one step, that what was refused was not written
is_empty() {
    local seen
    if seen=$(as_admin cat "$1") && [[ -z $seen ]]; then
        echo "ok $1 nothing-written"
        passed=$((passed + 1))
    else
        echo "FAILED $1 nothing-written: expected no record, saw $seen"
        failed=$((failed + 1))
    fi
}

# prepare COMMAND…: as admin, and the script ends when it fails
prepare() {
    local said
    said=$(as_admin "$@" 2>&1) || { echo "security.sh: $*: $said" >&2; exit 1; }
}
for user in plain scram-256 scram-512; do
    prepare users add "$user" --password-file "$dir/$user.secret"
done
prepare topics create without-rule
prepare topics create described
for principal in tls=ANONYMOUS mtls=certificate-other plain=plain scram-256=scram-256 scram-512=scram-512 oauth=oauth; do
    prepare acls add --allow "User:${principal#*=}" --operation create,read,write --topic "${principal%=*}-" --prefixed
    prepare acls add --allow "User:${principal#*=}" --operation read --group "${principal%=*}-" --prefixed
    prepare acls add --allow "User:${principal#*=}" --operation describe --topic described
done

cat >"$dir/cases" <<END
served tls $tls - trust - - -
served mtls $mtls - trust other - -
served plain $sasl PLAIN trust - plain plain.secret
served scram-256 $sasl SCRAM-SHA-256 trust - scram-256 scram-256.secret
served scram-512 $sasl SCRAM-SHA-512 trust - scram-512 scram-512.secret
served oauth $sasl OAUTHBEARER trust - - oauth.secret
refused tls-server-of-another-authority $tls - elsewhere - - -
refused mtls-without-certificate $mtls - trust - - -
refused mtls-certificate-of-another-authority $mtls - trust stranger - -
refused mtls-forged-certificate $mtls - trust forged - -
refused plain-wrong-password $sasl PLAIN trust - plain wrong.secret
refused scram-256-wrong-password $sasl SCRAM-SHA-256 trust - scram-256 wrong.secret
refused scram-512-wrong-password $sasl SCRAM-SHA-512 trust - scram-512 wrong.secret
refused oauth-other-audience $sasl OAUTHBEARER trust - - other-audience.secret
refused oauth-other-signature $sasl OAUTHBEARER trust - - other-signature.secret
END

for client in "${chosen[@]}"; do
    run_client "$client" "$client-security" --cases "$dir/cases" --run "$client"
    is_empty without-rule
    is_empty described
done
if ! kill -0 "$server" 2>/dev/null; then echo "the server is gone:"; failed=$((failed + 1)); fi
if [[ $failed -gt 0 ]]; then echo "--- the server's log"; tail -n 50 "$dir/log"; fi
print_table
