//! Binds a port early, before anything costly begins, and listens on it once the server can answer.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use compat_kafka::AdvertisedAddress;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::config::ListenAddress;

/// The most connections that wait for `accept`.
const BACKLOG: u32 = 1024;

/// A bound port. Clients cannot connect to it yet.
#[derive(Debug)]
pub(crate) struct BoundPort(TcpSocket);

impl BoundPort {
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Starts listening: clients can connect.
    pub(crate) fn listen(self) -> io::Result<TcpListener> {
        self.0.listen(BACKLOG)
    }
}

/// A listener, and the task that serves it.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) address: SocketAddr,
    pub(crate) task: JoinHandle<()>,
    stop: watch::Sender<bool>,
}

impl Listener {
    pub(crate) fn open<F>(
        listener: TcpListener,
        serve: impl FnOnce(TcpListener, watch::Receiver<bool>) -> F,
    ) -> anyhow::Result<Listener>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let address = listener.local_addr().context("see which port was taken")?;
        let (stop, stopped) = watch::channel(false);
        Ok(Listener { address, task: tokio::spawn(serve(listener, stopped)), stop })
    }

    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Stops accepting, and waits up to `patience` for the responses in progress.
    pub(crate) async fn close(mut self, patience: Duration) {
        self.stop();
        if tokio::time::timeout(patience, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}

/// Binds the port of `listen`. An error names `clients` and `option`, the setting.
pub(crate) async fn bind_port(
    listen: &ListenAddress,
    clients: &str,
    option: &str,
) -> anyhow::Result<Option<BoundPort>> {
    let ListenAddress::At(address) = listen else { return Ok(None) };
    let doing = || format!("listen for {clients} on {listen}");
    let mut addresses = resolve(address).await.with_context(doing)?;
    // One address is enough, and IPv4 reaches more clients.
    addresses.sort_by_key(SocketAddr::is_ipv6);
    let mut failed = None;
    for address in addresses {
        match bind(address) {
            Ok(socket) => return Ok(Some(BoundPort(socket))),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    let error = failed.unwrap_or_else(|| io::Error::other("the name has no address"));
    Err(anyhow::anyhow!("{}: {error}; {}", doing(), hint(&error, option)))
}

fn hint(error: &io::Error, option: &str) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => format!(
            "stop the process that has the port, or give another with {option} (port 0 takes any free one)"
        ),
        io::ErrorKind::PermissionDenied => {
            format!("ports below 1024 are not for everybody: give another with {option}")
        }
        _ => format!("give an address of this machine with {option}"),
    }
}

async fn resolve(address: &AdvertisedAddress) -> io::Result<Vec<SocketAddr>> {
    if let Ok(ip) = address.host.parse() {
        return Ok(vec![SocketAddr::new(ip, address.port)]);
    }
    Ok(tokio::net::lookup_host((address.host.as_str(), address.port)).await?.collect())
}

fn bind(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv6() { TcpSocket::new_v6() } else { TcpSocket::new_v4() }?;
    // Connections of an earlier process may still be closing.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: &str, port: u16) -> ListenAddress {
        ListenAddress::At(AdvertisedAddress { host: host.to_owned(), port })
    }

    async fn bind_test_port(listen: &ListenAddress) -> anyhow::Result<Option<BoundPort>> {
        bind_port(listen, "tests", "--kafka").await
    }

    #[tokio::test]
    async fn port_0_is_any_free_one_and_off_is_none() {
        let listener =
            bind_test_port(&at("localhost", 0)).await.unwrap().unwrap().listen().unwrap();
        assert_ne!(listener.local_addr().unwrap().port(), 0);
        assert!(bind_test_port(&ListenAddress::Off).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn a_port_that_is_in_use_says_what_to_do() {
        let first = bind_test_port(&at("127.0.0.1", 0)).await.unwrap().unwrap().listen().unwrap();
        let port = first.local_addr().unwrap().port();
        let error = format!("{:#}", bind_test_port(&at("127.0.0.1", port)).await.unwrap_err());
        assert!(error.contains("give another with --kafka"), "{error}");
        assert!(error.contains(&format!("127.0.0.1:{port}")), "{error}");
    }

    #[tokio::test]
    async fn an_address_of_another_machine_is_reported() {
        let error = format!("{:#}", bind_test_port(&at("192.0.2.1", 0)).await.unwrap_err());
        assert!(error.contains("an address of this machine"), "{error}");
    }
}
