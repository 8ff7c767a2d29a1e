//! Users of a data directory of this machine, whether a server runs on it or not: the way to the first one.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, bail};
use compat_kafka::{KafkaFormat, KafkaOptions};
use engine::EngineOptions;

use crate::broker::open_data_directory;
use crate::control::{
    ControlRequest, ControlResponse, LocalUser, change_users, exchange_if_running, local_principal,
};

/// Asks the server that runs on `data_dir`. If none does, it does itself what is asked, and makes the data directory
/// if there is none. Returns all users, after the change.
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
    check_owner(data_dir)?;
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
    let by = local_principal(rustix::process::geteuid().as_raw());
    let users = change_users(engine.security(), by, request).await;
    tokio::task::spawn_blocking(move || engine.close()).await?;
    drop(home);
    users
}

/// Refuses to write files that the server could not open, because they are somebody else's.
fn check_owner(data_dir: &Path) -> anyhow::Result<()> {
    let owner = match std::fs::metadata(data_dir) {
        Ok(found) => found.uid(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).context("look at the data directory"),
    };
    let own = rustix::process::geteuid().as_raw();
    anyhow::ensure!(
        owner == own,
        "the data directory {} is of the user with the id {owner}, and this one has the id {own}: run the command as its owner, or while its server runs",
        data_dir.display()
    );
    Ok(())
}
