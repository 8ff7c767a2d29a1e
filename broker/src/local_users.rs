//! Users of a data directory of this machine, whether a server runs on it or not: the way to the first one.

use std::path::Path;

use anyhow::bail;
use compat_kafka::{KafkaFormat, KafkaOptions};
use engine::EngineOptions;

use crate::broker::open_data_directory;
use crate::control::{
    ControlRequest, ControlResponse, LocalUser, change_users, exchange_if_running, local_principal,
};

/// Asks the server that runs on `data_dir`. If none does, it does itself what is asked, and makes the data directory
/// if there is none. Returns the users then.
///
/// # Errors
/// The server refuses; or the data directory cannot be opened.
pub async fn request_users(
    data_dir: &Path,
    request: ControlRequest,
) -> anyhow::Result<Vec<LocalUser>> {
    if data_dir.exists()
        && let Some(answer) = exchange_if_running(data_dir, &request)?
    {
        return match answer {
            ControlResponse::Users(users) => Ok(users),
            ControlResponse::Done(_) | ControlResponse::Clock(_) => {
                bail!("the server answers another question")
            }
            ControlResponse::Refused(why) => bail!(why),
        };
    }
    let data_dir = data_dir.to_owned();
    let decompressed_bytes_max = KafkaOptions::default().decompressed_bytes_max;
    let opening = tokio::task::spawn_blocking(move || {
        let format = KafkaFormat { decompressed_bytes_max };
        open_data_directory(&data_dir, EngineOptions::default(), format)
    });
    let (home, engine) = opening.await??;
    let by = local_principal(rustix::process::geteuid().as_raw());
    let users = change_users(engine.security(), by, request).await;
    tokio::task::spawn_blocking(move || engine.close()).await?;
    drop(home);
    users
}
