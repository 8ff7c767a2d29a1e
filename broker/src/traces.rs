//! Traces of requests, sent to an OpenTelemetry collector (OTLP over HTTP).
//!
//! They need a program that was built with the feature `otlp`. The variables of the environment are
//! those of OpenTelemetry's SDKs. The endpoint switches the export on.

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use engine::{REQUEST_TARGET, span_text};
use tracing::Instrument;

use crate::http_access::PeerAddress;

/// The environment variable with the URL of the collector, such as `http://127.0.0.1:4318`.
pub(crate) const ENDPOINT_VARIABLE: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

/// Gives a request over HTTP its span. It continues the trace that the client names, if it names
/// one (W3C Trace Context).
pub(crate) async fn trace_request(request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<PeerAddress>().map(|peer| peer.0);
    let span = tracing::trace_span!(
        target: REQUEST_TARGET,
        "http",
        otel.name = span_text(request.method().as_str()),
        otel.kind = "server",
        http.request.method = span_text(request.method().as_str()),
        url.path = span_text(request.uri().path()),
        http.response.status_code = tracing::field::Empty,
        client.address = peer.map(tracing::field::display),
    );
    #[cfg(feature = "otlp")]
    export::continue_trace(&span, request.headers());
    let response = next.run(request).instrument(span.clone()).await;
    span.record("http.response.status_code", i64::from(response.status().as_u16()));
    response
}

/// The export of traces, which this program was built without.
#[cfg(not(feature = "otlp"))]
#[derive(Debug)]
pub enum TraceExport {}

#[cfg(feature = "otlp")]
pub use export::TraceExport;

#[cfg(feature = "otlp")]
mod export {
    use std::time::Duration;

    use anyhow::Context;
    use async_trait::async_trait;
    use axum::http::HeaderMap;
    use opentelemetry::propagation::TextMapPropagator;
    use opentelemetry::trace::TracerProvider;
    use opentelemetry_http::hyper::HyperClient;
    use opentelemetry_http::{Bytes, HeaderExtractor, HttpClient, HttpError, Request, Response};
    use opentelemetry_otlp::{SpanExporter, WithHttpConfig};
    use opentelemetry_sdk::Resource;
    use opentelemetry_sdk::propagation::TraceContextPropagator;
    use opentelemetry_sdk::trace::SdkTracerProvider;
    use tokio::runtime::{Builder, Runtime};
    use tracing::Span;
    use tracing_opentelemetry::OpenTelemetrySpanExt;
    use tracing_subscriber::filter::{LevelFilter, Targets};
    use tracing_subscriber::{Layer, Registry};

    use super::REQUEST_TARGET;

    /// The longest time that a collector may take to answer.
    const ANSWER_MAX: Duration = Duration::from_secs(10);

    /// The export of traces. What is left is sent when it is dropped.
    #[derive(Debug)]
    pub struct TraceExport {
        provider: SdkTracerProvider,
    }

    impl TraceExport {
        /// Starts the export, and returns the layer that collects spans.
        pub(crate) fn start() -> anyhow::Result<(Self, Box<dyn Layer<Registry> + Send + Sync>)> {
            let exporter = SpanExporter::builder()
                .with_http()
                .with_http_client(CollectorClient::new()?)
                .build()
                .context("export traces")?;
            let resource = Resource::builder()
                .with_service_name(
                    crate::logging::variable("OTEL_SERVICE_NAME")
                        .unwrap_or_else(|| "freezeframe".to_owned()),
                )
                .build();
            let provider = SdkTracerProvider::builder()
                .with_batch_exporter(exporter)
                .with_resource(resource)
                .build();
            let requests = Targets::new().with_target(REQUEST_TARGET, LevelFilter::TRACE);
            let layer = tracing_opentelemetry::layer()
                .with_tracer(provider.tracer("freezeframe"))
                .with_location(false)
                .with_threads(false)
                .with_tracked_inactivity(false)
                .with_filter(requests);
            Ok((TraceExport { provider }, layer.boxed()))
        }
    }

    impl Drop for TraceExport {
        fn drop(&mut self) {
            if let Err(error) = self.provider.shutdown() {
                tracing::warn!(%error, "the last traces were not sent");
            }
        }
    }

    pub(super) fn continue_trace(span: &Span, headers: &HeaderMap) {
        let parent = TraceContextPropagator::new().extract(&HeaderExtractor(headers));
        // An error means that nobody collects the span.
        let _ = span.set_parent(parent);
    }

    /// A client for the thread of the SDK that sends, which has no runtime.
    #[derive(Debug)]
    struct CollectorClient {
        client: HyperClient,
        runtime: Runtime,
    }

    impl CollectorClient {
        fn new() -> anyhow::Result<CollectorClient> {
            let runtime = Builder::new_multi_thread()
                .worker_threads(1)
                .thread_name("traces")
                .enable_all()
                .build()
                .context("start the runtime of the export of traces")?;
            let client = HyperClient::with_default_connector(ANSWER_MAX, None);
            Ok(CollectorClient { client, runtime })
        }
    }

    #[async_trait]
    impl HttpClient for CollectorClient {
        async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
            let client = self.client.clone();
            self.runtime.spawn(async move { client.send_bytes(request).await }).await?
        }
    }
}
