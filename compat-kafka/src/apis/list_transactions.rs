//! ListTransactions (66): the transactional ids that match (KIP-664, KIP-994, KIP-1152).

use std::collections::HashSet;
use std::sync::Arc;

use engine::security::{Operation, Resource};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::list_transactions_response::TransactionState;
use kafka_protocol::messages::{
    ListTransactionsRequest, ListTransactionsResponse, ProducerId, TransactionalId,
};
use kafka_protocol::protocol::{StrBytes, VersionRange};
use kafka_transactions::{TransactionOverview, TransactionStatus};
use regex::{Regex, RegexBuilder};

use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

const PATTERN_BYTES_MAX: usize = 1024;
/// The most memory of a pattern.
const PATTERN_MEMORY_MAX: usize = 1 << 20;

impl ApiHandler for ListTransactionsRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 2 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> ListTransactionsResponse {
        let pattern = self.transactional_id_pattern.as_deref().unwrap_or_default();
        let Ok(pattern) = whole_pattern(pattern) else {
            return ListTransactionsResponse::default()
                .with_error_code(ResponseError::InvalidRegularExpression.code());
        };
        let (mut states, mut unknown) = (Vec::new(), Vec::new());
        for name in &self.state_filters {
            match TransactionStatus::named(name) {
                Some(status) => states.push(status),
                None => unknown.push(name.clone()),
            }
        }
        // Only unknown states match nothing.
        let any_state = self.state_filters.is_empty();
        let producers: HashSet<i64> =
            self.producer_id_filters.iter().map(|producer| producer.0).collect();
        let is_visible = |id: &str| {
            kafka.is_authorized(context, Operation::Describe, Resource::transactional_id(id))
        };
        let is_wanted = |transaction: &TransactionOverview| {
            let longer = |open_ms: u64| open_ms as i64 > self.duration_filter;
            (any_state || states.contains(&transaction.status))
                && (producers.is_empty() || producers.contains(&transaction.producer.id))
                && (self.duration_filter < 0 || transaction.open_ms.is_some_and(longer))
                && pattern.as_ref().is_none_or(|pattern| pattern.is_match(&transaction.id))
                && is_visible(&transaction.id)
        };
        let transactions =
            kafka.coordinators.transactions.list().into_iter().filter(is_wanted).map(to_response);
        ListTransactionsResponse::default()
            .with_unknown_state_filters(unknown)
            .with_transaction_states(transactions.collect())
    }
}

/// The pattern of a whole transactional id; `None` for every one.
fn whole_pattern(pattern: &str) -> Result<Option<Regex>, ()> {
    if pattern.is_empty() {
        return Ok(None);
    }
    if pattern.len() > PATTERN_BYTES_MAX {
        return Err(());
    }
    let anchored = format!("^(?:{pattern})$");
    RegexBuilder::new(&anchored).size_limit(PATTERN_MEMORY_MAX).build().map(Some).map_err(drop)
}

fn to_response(transaction: TransactionOverview) -> TransactionState {
    TransactionState::default()
        .with_transactional_id(TransactionalId(StrBytes::from_string(transaction.id)))
        .with_producer_id(ProducerId(transaction.producer.id))
        .with_transaction_state(StrBytes::from_static_str(transaction.status.name()))
}
