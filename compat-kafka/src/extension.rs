//! The history API over Kafka's wire.
//!
//! It is one API with a key far above Kafka's, and ApiVersions lists it only for our own clients,
//! so stock clients never see it. Requests and responses are one JSON document each;
//! `docs/HISTORY-API.md` describes them, and `history-api` answers them.

use std::sync::Arc;

use bytes::{BufMut, Bytes};
use history_api::{HistoryAccess, HistoryApiError};
use history_documents::{DOCUMENT_BYTES_MAX, HistoryErrorCode, HistoryRequest};

use crate::kafka_server::KafkaServer;
use crate::request::{BadRequest, RequestContext, ResponseResult};
use crate::response::KafkaResponse;

/// "FF".
pub(crate) const API_KEY: i16 = 17990;

pub(crate) async fn handle(
    kafka: &Arc<KafkaServer>,
    context: &RequestContext,
    body: Bytes,
) -> ResponseResult {
    if context.version != 0 {
        return Err(BadRequest {
            api: context.api_key,
            version: context.version,
            reason: "the extension API is served in version 0".to_owned(),
        });
    }
    let answer = answer(kafka, context, &body).await.unwrap_or_else(|refusal| refusal.document());
    let mut out = KafkaResponse::new();
    out.write(|bytes| {
        bytes.put_i32(context.correlation_id);
        bytes.put_slice(answer.as_bytes());
    });
    Ok(Some(out))
}

async fn answer(
    kafka: &KafkaServer,
    context: &RequestContext,
    body: &[u8],
) -> Result<String, HistoryApiError> {
    if body.len() > DOCUMENT_BYTES_MAX {
        let bytes = body.len();
        let what =
            format!("a document of {bytes} bytes is too long: it may have {DOCUMENT_BYTES_MAX}");
        return Err(HistoryApiError::new(HistoryErrorCode::TooLarge, what));
    }
    context.connection.count_authorization();
    let security = Arc::clone(kafka.engine.security());
    let access = HistoryAccess::new(security, context.connection.requester());
    kafka.history().answer(HistoryRequest::from_slice(body)?, &access).await
}

#[cfg(test)]
mod tests;
