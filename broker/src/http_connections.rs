//! The open connections to the ports for operators, and the requests that are being answered there.
//!
//! Connections are a budget by address: when all are taken, one of the address with the most ends,
//! but none whose request is being answered. A request counts once its body has arrived. Requests
//! are a budget of half as many, by principal, so there is always a connection that may end.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use admission::{Budget, BudgetError, BudgetGrant, BudgetKind, BudgetRegistry, BudgetSpec, Holder};
use axum::body::{Body, Bytes};
use axum::response::Response;
use futures_util::future::AbortHandle;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::Instant;

/// The number of connections at a time.
const CONNECTIONS_MAX: u64 = 64;
/// The number of requests at a time whose bodies have arrived. Requests on routes that take no
/// login do not count.
const REQUESTS_MAX: u64 = 32;
/// A new connection without a request counts as idle after this.
const FIRST_REQUEST_MIN: Duration = Duration::from_secs(1);

const CONNECTIONS: BudgetSpec = BudgetSpec {
    name: "http-connections",
    unit: "connections over HTTP",
    setting: None,
    kind: BudgetKind::Yielding,
};

const REQUESTS: BudgetSpec = BudgetSpec {
    name: "http-requests",
    unit: "requests over HTTP",
    setting: None,
    kind: BudgetKind::Kept,
};

#[derive(Debug)]
pub(crate) struct HttpConnections {
    connections: Arc<Budget>,
    requests: Arc<Budget>,
    open: Mutex<OpenHttpConnections>,
}

#[derive(Debug, Default)]
struct OpenHttpConnections {
    next: u64,
    by_age: BTreeMap<u64, HttpConnection>,
}

#[derive(Debug)]
struct HttpConnection {
    grant: BudgetGrant,
    handle: AbortHandle,
    requests: RequestsUnderWay,
}

impl HttpConnections {
    pub(crate) fn new() -> Arc<HttpConnections> {
        Arc::new(HttpConnections {
            connections: Budget::new(CONNECTIONS, CONNECTIONS_MAX),
            requests: Budget::new(REQUESTS, REQUESTS_MAX),
            open: Mutex::default(),
        })
    }

    /// Lists the budgets.
    pub(crate) fn register(&self, budgets: &BudgetRegistry) {
        budgets.register(Arc::<Budget>::clone(&self.connections));
        budgets.register(Arc::<Budget>::clone(&self.requests));
    }

    /// Adds a connection, which `handle` ends. Another one may end for it.
    ///
    /// # Errors
    /// All are taken, and none may end.
    pub(crate) fn open(
        self: &Arc<HttpConnections>,
        from: IpAddr,
        handle: AbortHandle,
    ) -> Result<HttpPlace, BudgetError> {
        let holder = Holder::address(from);
        let mut open = self.open.lock();
        let grant = self
            .connections
            .take_evicting(&holder, 1, |refusal| open.end_one_of(refusal.yields.as_ref()))?;
        let nth = open.next;
        open.next += 1;
        let requests = RequestsUnderWay::new();
        let connection = HttpConnection { grant, handle, requests: requests.clone() };
        open.by_age.insert(nth, connection);
        Ok(HttpPlace { table: Arc::clone(self), nth, requests })
    }

    /// Charges a request to its holder, until the grant is dropped.
    ///
    /// # Errors
    /// The holder has its share.
    pub(crate) fn begin_request(&self, holder: &Holder) -> Result<BudgetGrant, BudgetError> {
        self.requests.take(holder, 1)
    }
}

impl OpenHttpConnections {
    /// Ends a connection of a holder of which no request is being answered.
    fn end_one_of(&mut self, yields: Option<&Holder>) -> bool {
        let candidates = self.by_age.iter().filter_map(|(nth, connection)| {
            if Some(connection.grant.holder()) != yields {
                return None;
            }
            Some((connection.requests.idleness()?, *nth))
        });
        let oldest = candidates.min().and_then(|(_, nth)| self.by_age.remove(&nth));
        if let Some(connection) = &oldest {
            connection.handle.abort();
        }
        oldest.is_some()
    }
}

/// The place of a connection among the open ones, until it is dropped.
#[derive(Debug)]
pub(crate) struct HttpPlace {
    table: Arc<HttpConnections>,
    nth: u64,
    requests: RequestsUnderWay,
}

impl HttpPlace {
    pub(crate) fn requests(&self) -> &RequestsUnderWay {
        &self.requests
    }
}

impl Drop for HttpPlace {
    fn drop(&mut self) {
        self.table.open.lock().by_age.remove(&self.nth);
    }
}

/// The requests of a connection.
#[derive(Clone, Debug)]
pub(crate) struct RequestsUnderWay(Arc<ConnectionRequests>);

#[derive(Debug)]
struct ConnectionRequests {
    begun: Instant,
    asked: AtomicUsize,
    answered: AtomicUsize,
}

/// The order in which connections end to make room: the first variant first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum HttpIdleness {
    /// All its requests are answered.
    Answered,
    /// It has not sent any for longer than it takes to send one.
    Silent,
    /// It has just begun.
    New,
}

/// A request, until its response is written.
#[derive(Debug)]
pub(crate) struct RequestUnderWay(RequestsUnderWay);

impl RequestsUnderWay {
    fn new() -> RequestsUnderWay {
        let (begun, asked, answered) = (Instant::now(), AtomicUsize::new(0), AtomicUsize::new(0));
        RequestsUnderWay(Arc::new(ConnectionRequests { begun, asked, answered }))
    }

    /// `None` if a request is being answered.
    fn idleness(&self) -> Option<HttpIdleness> {
        let answered = self.0.answered.load(Ordering::Relaxed);
        match self.0.asked.load(Ordering::Relaxed) {
            0 if self.0.begun.elapsed() > FIRST_REQUEST_MIN => Some(HttpIdleness::Silent),
            0 => Some(HttpIdleness::New),
            asked if asked == answered => Some(HttpIdleness::Answered),
            _ => None,
        }
    }

    /// A request whose body has arrived.
    pub(crate) fn begin(&self) -> RequestUnderWay {
        self.0.asked.fetch_add(1, Ordering::Relaxed);
        RequestUnderWay(self.clone())
    }
}

impl RequestUnderWay {
    /// The request is under way, and charged to its holder, until all of the body of `response` is
    /// taken.
    pub(crate) fn until_taken(self, grant: BudgetGrant, response: Response) -> Response {
        response.map(|body| Body::new(CountedBody { body, _under_way: self, _grant: grant }))
    }
}

impl Drop for RequestUnderWay {
    fn drop(&mut self) {
        self.0.0.answered.fetch_add(1, Ordering::Relaxed);
    }
}

/// The body of a response, whose request is under way until all of it is taken.
struct CountedBody {
    body: Body,
    _under_way: RequestUnderWay,
    _grant: BudgetGrant,
}

impl HttpBody for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct TestConnection {
        place: HttpPlace,
        handle: AbortHandle,
    }

    fn open(table: &Arc<HttpConnections>, last: u8) -> Result<TestConnection, BudgetError> {
        let (handle, _) = AbortHandle::new_pair();
        let place = table.open([10, 0, 0, last].into(), handle.clone())?;
        Ok(TestConnection { place, handle })
    }

    #[tokio::test]
    async fn two_hundred_connections_end_no_request_under_way() {
        let table = HttpConnections::new();
        let admin = open(&table, 1).expect("there is room");
        let _request = admin.place.requests.begin();
        let flood: Vec<_> = (0..200).map(|_| open(&table, 2).expect("others end")).collect();
        assert!(!admin.handle.is_aborted());
        let open = flood.iter().filter(|connection| !connection.handle.is_aborted()).count();
        assert!(open < CONNECTIONS_MAX as usize, "{open}");
    }

    #[tokio::test]
    async fn idle_ones_of_the_address_with_most_end_first() {
        let table = HttpConnections::new();
        let lone = open(&table, 1).expect("there is room");
        drop(lone.place.requests.begin());
        let connections: Vec<_> =
            (0..60).map(|_| open(&table, 2).expect("there is room")).collect();
        drop(connections[7].place.requests.begin());
        let rest: Vec<_> = (3..7).map(|last| open(&table, last).expect("one ends")).collect();
        assert!(connections[7].handle.is_aborted() && !lone.handle.is_aborted());
        assert!(rest.iter().all(|connection| !connection.handle.is_aborted()));
    }

    #[tokio::test]
    async fn requests_of_one_holder_leave_room_for_others() {
        let table = HttpConnections::new();
        let user = |name| Holder::principal(name, false);
        let mut grants = Vec::new();
        while let Ok(grant) = table.begin_request(&user("User:b")) {
            grants.push(grant);
        }
        assert!(grants.len() < REQUESTS_MAX as usize);
        assert!(table.begin_request(&user("User:a")).is_ok());
    }

    #[tokio::test]
    async fn a_connection_that_ends_is_no_longer_counted() {
        let table = HttpConnections::new();
        drop(open(&table, 1));
        assert_eq!(table.connections.used(), 0);
    }
}
