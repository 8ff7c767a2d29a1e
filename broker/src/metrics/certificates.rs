//! The expiry of the certificates of listeners.

use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use crate::dynamic_settings::NamedTls;

/// The files are not read again before.
const READ_INTERVAL: Duration = Duration::from_secs(60);

/// Some certificates, and when they end.
pub(crate) struct CertificateEnds {
    tls: Vec<NamedTls>,
    last: Mutex<Option<(Instant, ListenerEnds)>>,
}

/// A listener, and the end of the first of its certificates to end.
type ListenerEnds = Vec<(String, SystemTime)>;

impl CertificateEnds {
    pub(crate) fn new(tls: Vec<NamedTls>) -> CertificateEnds {
        CertificateEnds { tls, last: Mutex::default() }
    }

    /// A listener whose files cannot be read is left out: the log and the health say so.
    pub(super) fn read(&self) -> ListenerEnds {
        let mut last = self.last.lock();
        if let Some((read_at, ends)) = &*last
            && read_at.elapsed() < READ_INTERVAL
        {
            return ends.clone();
        }
        let ends: ListenerEnds = self
            .tls
            .iter()
            .filter_map(|(name, tls)| Some((name.clone(), tls.certificates_end().ok()??)))
            .collect();
        *last = Some((Instant::now(), ends.clone()));
        ends
    }
}

impl std::fmt::Debug for CertificateEnds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CertificateEnds").finish_non_exhaustive()
    }
}
