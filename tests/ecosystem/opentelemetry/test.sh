# An OpenTelemetry Collector takes the traces of requests, from a server that is built with the feature for it.
manifest=$here/opentelemetry/manifest.yaml
version=$(sed -n 's/.*otlpreceiver v//p' "$manifest")
collector=$cache/opentelemetry
if ! cmp -s "$manifest" "$collector/manifest.yaml"; then
    command -v go >/dev/null || skip "there is no go to build a collector with"
    rm -rf "$collector"
    mkdir -p "$collector"
    GOBIN=$collector go install "go.opentelemetry.io/collector/cmd/builder@v$version" >"$work/go.log" 2>&1 &&
        (cd "$collector" && ./builder --config "$manifest") >>"$work/go.log" 2>&1 &&
        cp "$manifest" "$collector/manifest.yaml" || fail "expected the collector to build"
fi
root=$(realpath "$here/../..")
(cd "$root" && cargo build --quiet --package cli --bin freezeframe --features otlp --target-dir "${CARGO_TARGET_DIR:-target}/otlp") >"$work/cargo.log" 2>&1 ||
    fail "expected the server to build with the feature otlp"
freezeframe=$(cd "$root" && realpath "${CARGO_TARGET_DIR:-target}/otlp/debug/freezeframe")

port=$(free_port)
cat >"$work/collector.yaml" <<END
receivers:
  otlp:
    protocols:
      http:
        endpoint: 127.0.0.1:$port
exporters:
  debug:
    verbosity: detailed
service:
  telemetry:
    metrics:
      level: none
  pipelines:
    traces:
      receivers: [otlp]
      exporters: [debug]
END
"$collector/otelcol" --config "$work/collector.yaml" >"$work/collector.log" 2>&1 &
started+=($!)
is_open() { (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; }
until_holds "the collector to listen" is_open
export OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:$port OTEL_BSP_SCHEDULE_DELAY=100
start_server

# spans NAME [TEXT]: how many spans of that name were sent, with that text in one of their lines.
spans() {
    awk -v name="$1" -v text="${2:-}" '
        function count() { if (is_named && has_text) found++ }
        /^Span #/ { count(); is_named = 0; has_text = text == "" }
        $1 == "Name" && $NF == name { is_named = 1 }
        text != "" && index($0, text) { has_text = 1 }
        END { count(); print found + 0 }
    ' "$work/collector.log"
}
has_span() { [[ $(spans "$@") -ge 1 ]]; }

"$freezeframe" topics create orders 2>"$work/topics.log"
echo 17 | "$freezeframe" produce orders 2>"$work/produce.log"
"$freezeframe" cat orders >"$work/read"
until_holds "a span of a request over Kafka's protocol" has_span ApiVersions 'messaging.system: Str(kafka)'
# The client of the command line moves records by requests of its own, 17991.
until_holds "a span of a write" has_span 17991 'client.address: Str(127.0.0.1)'
until_holds "the wait for the journal inside it" has_span journal
"$freezeframe" zk create /shop 1 >"$work/zk.log"
until_holds "a span of a request to ZooKeeper's port" has_span create 'zookeeper.session'
trace=4bf92f3577b34da6a3ce929d0e0e4736
curl -sf -H "traceparent: 00-$trace-00f067aa0ba902b7-01" "http://$FREEZEFRAME_HTTP/v1/moment" >"$work/moment"
until_holds "the span of a request over HTTP in the trace of its client" has_span GET "$trace"
has_span GET 'http.response.status_code: Int(200)' || fail "expected the status in the span"
[[ $(spans ping) -eq 0 ]] || fail "expected no spans of pings"

# A collector that is away costs the spans, and nothing else.
kill "${started[0]}"
wait "${started[0]}" 2>/dev/null
echo 18 | "$freezeframe" produce orders 2>"$work/produce.log" || fail "expected a write without a collector to succeed"
works "OpenTelemetry Collector" "$version" "a span of each request over Kafka's and ZooKeeper's protocols and HTTP, with the waits for the journal; the trace that an HTTP client names goes on"
