#!/usr/bin/env bash
# Certificates for the TLS steps, valid for a day: make-certificates.sh DIR
#
# DIR then has a certificate authority, and a server and three clients that it signed, each as NAME.pem (certificates and
# key) and NAME.p12 (password: secret); trust.p12 has the authority as Java reads it. The client `member` has a name that
# needs every kind of escape; the authority of `stranger` is another one.
set -euo pipefail
dir=${1:?usage: make-certificates.sh DIR}
mkdir -p "$dir"
cd "$dir"

authority() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$1.key" -out "$1.crt" -days 1 -subj "/CN=$1" 2>/dev/null
}
signed() {
    local name=$1 subject=$2 by=$3
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -utf8 -keyout "$name.key" -out "$name.csr" -subj "$subject" 2>/dev/null
    openssl x509 -req -in "$name.csr" -CA "$by.crt" -CAkey "$by.key" -CAcreateserial -days 1 -out "$name.crt" \
        -extfile <(echo "subjectAltName=DNS:localhost,IP:127.0.0.1") 2>/dev/null
    cat "$name.crt" "$by.crt" "$name.key" >"$name.pem"
    openssl pkcs12 -export -inkey "$name.key" -in "$name.crt" -certfile "$by.crt" -out "$name.p12" -passout pass:secret
}

authority authority
authority elsewhere
signed server "/CN=localhost/O=Frames" authority
signed member '/DC=org/C=DE/O=Frames, Inc./OU=a+b\=c/CN=#Zoë "x" \\/UID=7/emailAddress=b@example.org' authority
signed other "/CN=other/O=Frames" authority
signed root "/CN=root/O=Frames" authority
signed stranger "/CN=stranger" elsewhere
cp authority.crt trust.pem
rm -f trust.p12
keytool -importcert -noprompt -alias authority -file authority.crt -keystore trust.p12 -storetype PKCS12 -storepass secret 2>/dev/null
echo secret >password
# For Kafka's own tools
cat >java.properties <<END
security.protocol=SSL
ssl.truststore.location=$PWD/trust.p12
ssl.truststore.password=secret
ssl.truststore.type=PKCS12
ssl.keystore.location=$PWD/other.p12
ssl.keystore.password=secret
ssl.key.password=secret
ssl.keystore.type=PKCS12
END
