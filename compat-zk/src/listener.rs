//! Accepts connections.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::server::ZkServer;

/// How long to wait after a connection could not be accepted: mostly, descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves all who connect, until `stop` becomes true.
pub async fn serve(server: Arc<ZkServer>, listener: TcpListener, mut stop: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        while connections.try_join_next().is_some() {}
        match accepted {
            Ok(_) if connections.len() >= server.options.connections_max => {
                server.refuse_connection("as many are open as may be (zookeeper.maxCnxns)");
            }
            Ok((stream, peer)) => {
                let server = Arc::clone(&server);
                connections.spawn(async move {
                    if stream.set_nodelay(true).is_ok() {
                        server.serve(stream, peer).await;
                    }
                });
            }
            Err(error) => {
                server.refuse_connection(&error.to_string());
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    // Sessions go on at the next start: their connections are cut, as by any server that goes away.
    connections.shutdown().await;
}
