//! Users of a data directory of this machine, whether a server runs on it or not: the way to the
//! first one.

use std::path::Path;

use anyhow::bail;
use compat_kafka::{KafkaFormat, KafkaOptions};
use engine::EngineOptions;

use crate::broker::{open_data_directory, restrict_new_files};
use crate::control::{
    ControlRequest, ControlResponse, change_users, exchange_if_running, local_principal,
};

/// Sends a request to the server that runs on `data_dir`. Without a server, opens the directory and
/// does it here; a missing directory is created.
///
/// # Errors
/// The server refuses; or the data directory cannot be opened.
pub async fn request_users(
    data_dir: &Path,
    request: ControlRequest,
) -> anyhow::Result<ControlResponse> {
    if data_dir.exists()
        && let Some(answer) = exchange_if_running(data_dir, &request)?
    {
        return match answer {
            ControlResponse::Refused(reason) => bail!(reason),
            answer => Ok(answer),
        };
    }
    restrict_new_files();
    let data_dir = data_dir.to_owned();
    let decompressed_bytes_max = KafkaOptions::default().decompressed_bytes_max;
    let opening = tokio::task::spawn_blocking(move || {
        let format = KafkaFormat { decompressed_bytes_max };
        let mut options = EngineOptions::default();
        // Maintenance would sign proofs as no setting says.
        options.core.storage.manual_maintenance = true;
        open_data_directory(&data_dir, options, format)
    });
    let (home, engine) = opening.await??;
    let principal = local_principal(rustix::process::geteuid().as_raw());
    let changed = change_users(engine.security(), principal, request).await;
    tokio::task::spawn_blocking(move || engine.close()).await?;
    drop(home);
    changed
}
