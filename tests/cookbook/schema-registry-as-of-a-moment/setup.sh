# Apicurio Registry, with its storage in Kafka's topics, at REGISTRY; THEN is an address for another one.
version=3.0.9
APICURIO_HOME=$cache/apicurio-registry-$version
command -v jq >/dev/null || skip "there is no jq"
if [[ ! -e $APICURIO_HOME/unpacked ]]; then
    rm -rf "$APICURIO_HOME"
    mkdir -p "$APICURIO_HOME"
    mvn -B -q -Dstyle.color=never dependency:copy -Dartifact="io.apicurio:apicurio-registry-app:$version:tar.gz:all" -DoutputDirectory="$work" >"$work/maven.log" &&
        tar -xzf "$work/apicurio-registry-app-$version-all.tar.gz" -C "$APICURIO_HOME" && touch "$APICURIO_HOME/unpacked" ||
        fail "expected Apicurio Registry $version to unpack"
fi
REGISTRY=127.0.0.1:$(free_port) THEN=127.0.0.1:$(free_port)
export APICURIO_HOME REGISTRY THEN

APICURIO_STORAGE_KIND=kafkasql APICURIO_KAFKASQL_BOOTSTRAP_SERVERS=$FREEZEFRAME_BOOTSTRAP \
    QUARKUS_HTTP_HOST=127.0.0.1 QUARKUS_HTTP_PORT=${REGISTRY#*:} \
    java -Xmx512m -jar "$APICURIO_HOME/apicurio-registry-app-$version-runner.jar" >"$work/registry.log" 2>&1 &
started+=($!)
until_holds "the registry to answer" curl -fsS -o "$work/answer" "http://$REGISTRY/health/ready" 2>/dev/null
