//! The limits of what clients take of this server at a time: connections, memory of requests and
//! responses, and work that occupies a thread.

use std::sync::Arc;
use std::thread::available_parallelism;

use admission::BudgetRegistry;
use kafka_connections::{ConnectionTable, MemoryBudget, MemoryBudgetSpec};
use tokio::sync::Semaphore;

use crate::frame_buffer_pool::LARGE_BYTES_MIN;
use crate::options::KafkaOptions;
use crate::quotas::{ClientQuotas, ConnectionRates};

/// Small requests have a budget of their own, smaller than the large ones' by this factor.
const SMALL_REQUEST_DIVISOR: usize = 4;
/// The most links that are opened at a time. Each may take a thread for a second.
const LINK_OPENINGS_MAX: usize = 4;

pub(crate) struct AdmissionControl {
    /// The open connections of all listeners.
    pub(crate) connections: Arc<ConnectionTable>,
    pub(crate) connection_rates: ConnectionRates,
    /// The budget for large requests that have arrived or are arriving.
    pub(crate) large_requests: Arc<MemoryBudget>,
    /// The budget for small requests that arrive before an earlier one is answered.
    pub(crate) pipelined_requests: Arc<MemoryBudget>,
    /// The budget for responses that clients have not read yet.
    pub(crate) responses: Arc<MemoryBudget>,
    /// The amounts that clients have used of their quotas.
    pub(crate) client_quotas: ClientQuotas,
    /// Permits to decompress large batches that are produced.
    pub(crate) decompressions: Semaphore,
    /// Permits to open links.
    pub(crate) link_openings: Arc<Semaphore>,
}

impl AdmissionControl {
    /// Lists its budgets in `budgets`.
    pub(crate) fn new(options: &KafkaOptions, budgets: &BudgetRegistry) -> AdmissionControl {
        let stall_max = options.transfer_limits.stall_max;
        let budget = |name, setting, bytes, frame_bytes_max| {
            let spec = MemoryBudgetSpec { name, setting };
            let budget = MemoryBudget::new(spec, bytes, frame_bytes_max, stall_max);
            let listed = Arc::clone(&budget);
            budgets.register(listed);
            budget
        };
        AdmissionControl {
            connections: ConnectionTable::new(budgets, options.dynamic.limits.max),
            connection_rates: ConnectionRates::default(),
            large_requests: budget(
                "large-requests",
                "queued.max.request.bytes",
                options.requests_bytes_max,
                options.request_bytes_max,
            ),
            pipelined_requests: budget(
                "pipelined-requests",
                "queued.max.request.bytes",
                options.requests_bytes_max / SMALL_REQUEST_DIVISOR,
                LARGE_BYTES_MIN,
            ),
            responses: budget("responses", "limits.answer-bytes", options.responses_bytes_max, 0),
            client_quotas: ClientQuotas::new(options.quota_rates),
            // Half of the cores stay free for clients that send small batches.
            decompressions: Semaphore::new(
                available_parallelism().map_or(1, |cores| cores.get().div_ceil(2)),
            ),
            link_openings: Arc::new(Semaphore::new(LINK_OPENINGS_MAX)),
        }
    }
}
