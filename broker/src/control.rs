//! The control socket in the data directory, for requests by the owner of the server.
//!
//! Any user who may open the directory's `control.sock` can send requests: the owner of the server
//! process, and root. A request is one line of JSON, and so is its response.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use engine::security::{
    Actor, ScramCredential, ScramMechanism, Security, SecurityChange, SecurityState,
};
use engine::{Engine, Isolation};
use fileview::fuse::FuseMounts;
pub use fileview::fuse::data_dir_of;
use hlc::{Hlc, SysTime, WallMark};
use serde::{Deserialize, Serialize};
use storage::backup::JournalPoint;
use storage::manifest::{MANIFEST_BYTES_MAX, Manifest};
use storage::timekeeper::Timekeeper;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixListener;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// The name of the socket in the data directory.
const SOCKET: &str = "control.sock";
/// Its name until only the owner can open it.
const SOCKET_TEMPORARY: &str = "control.sock.new";
/// The longest request or response.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// The time limit for a client to send its request, and to read the response.
const REQUEST_MAX: Duration = Duration::from_secs(10);
/// The number of clients at a time.
const CONNECTIONS_MAX: usize = 16;
/// The time limit of a response. A mount point may wait for a disk.
const RESPONSE_MAX: Duration = Duration::from_secs(60);
/// The time limit of the response to a backup: it waits for a round of maintenance, and for a sync.
const BACKUP_RESPONSE_MAX: Duration = Duration::from_secs(600);
/// A backup that runs longer is worth a warning, and another one after each such time.
pub(crate) const BACKUP_LONG: Duration = Duration::from_secs(60 * 60);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum ControlRequest {
    /// Mount the tree at an empty directory.
    Mount {
        /// Its absolute path.
        directory: PathBuf,
        /// Also show the records of transactions that are open or aborted.
        #[serde(default)]
        shows_uncommitted: bool,
    },
    /// Remove a mount.
    Umount {
        /// Its absolute path.
        directory: PathBuf,
        /// Also while it is in use.
        lazily: bool,
    },
    /// List the mounts.
    Mounts,
    /// Report the state of the clock.
    ClockStatus,
    /// The operator confirms that the wall clock is right.
    ClockConfirm,
    /// List the users with a password.
    Users,
    /// Set the password of a user, who need not exist.
    SetUser {
        name: String,
        /// The salted credential of the password for each mechanism.
        credentials: Vec<(ScramMechanism, ScramCredential)>,
    },
    /// Remove what is known of a user's password.
    RemoveUser { name: String },
    /// Begin a backup. The server keeps the files until the connection ends. The bytes of the
    /// manifest follow the line of the response.
    Backup,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ControlResponse {
    /// Success, with the directories of the request.
    Done(Vec<PathBuf>),
    Clock(ClockStatus),
    Users(Vec<LocalUser>),
    UserChanged {
        /// The number of delegation tokens that ended with the earlier password; `None` without an
        /// earlier one.
        ended_tokens: Option<usize>,
    },
    Backup(BackupPointDocument),
    /// Failure, with the reason.
    Refused(String),
}

/// A [`JournalPoint`], without its manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackupPointDocument {
    /// The length of the manifest.
    manifest_bytes: u64,
    /// The journal's end.
    end: u64,
    /// Every entry that will ever have a stamp up to it is below the end; as bits.
    frontier: u64,
    /// The last confirmed reading of the wall clock, in milliseconds since 1970.
    mark_ms: u64,
    /// True if it is still confirmed.
    is_mark_confirmed: bool,
}

/// A point that a server keeps while this exists.
#[derive(Debug)]
pub(crate) struct RemoteBackupPoint {
    pub(crate) point: JournalPoint,
    connection: UnixStream,
}

impl RemoteBackupPoint {
    /// Checks that the server has kept the files until now.
    ///
    /// # Errors
    /// It has ended.
    pub(crate) fn require_kept(&self) -> anyhow::Result<()> {
        self.connection.set_nonblocking(true).context("look at the connection to the server")?;
        match (&self.connection).read(&mut [0]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            _ => bail!("the server ended while it was backed up: make the backup again"),
        }
    }
}

/// A user with a password.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalUser {
    pub name: String,
    /// The mechanisms by which it can log in, and how many times each hashes the password.
    pub mechanisms: Vec<(ScramMechanism, u32)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClockStatus {
    /// The wall clock, in milliseconds since 1970.
    pub wall_ms: u64,
    /// The reason why writes are refused; `None` if they are not.
    pub fenced: Option<String>,
    /// The reason why retention by age is suspended; `None` if it is not.
    pub unconfirmed: Option<String>,
    /// The distance of stamps ahead of the wall clock.
    pub ahead_ms: u64,
    /// True if the kernel reports a synchronised wall clock.
    pub clock_synchronised: bool,
    /// The estimated error of the wall clock.
    pub clock_error_ms: u64,
    /// The largest error of the wall clock that the settings allow.
    pub skew_ms: u64,
}

impl ClockStatus {
    pub(crate) fn of(timekeeper: &Timekeeper) -> ClockStatus {
        let precision = timekeeper.precision();
        ClockStatus {
            wall_ms: timekeeper.wall_now().0,
            fenced: timekeeper.fence().map(|fence| fence.to_string()),
            unconfirmed: timekeeper.doubt().map(|doubt| doubt.to_string()),
            ahead_ms: precision.ahead_ms,
            clock_synchronised: precision.is_synchronised,
            clock_error_ms: precision.error_ms,
            skew_ms: precision.skew_max_ms,
        }
    }
}

/// Sends a request about mounts to the server that runs on `data_dir`.
///
/// # Errors
/// No server runs there, it does not respond, or it refuses.
pub fn request_directories(
    data_dir: &Path,
    request: &ControlRequest,
) -> anyhow::Result<Vec<PathBuf>> {
    match exchange(data_dir, request)? {
        ControlResponse::Done(directories) => Ok(directories),
        ControlResponse::Refused(reason) => bail!(reason),
        _ => bail!("the server answers another question"),
    }
}

/// Sends a request about the clock to the server that runs on `data_dir`.
///
/// # Errors
/// As [`request_directories`].
pub fn request_clock(data_dir: &Path, request: &ControlRequest) -> anyhow::Result<ClockStatus> {
    match exchange(data_dir, request)? {
        ControlResponse::Clock(status) => Ok(status),
        ControlResponse::Refused(reason) => bail!(reason),
        _ => bail!("the server answers another question"),
    }
}

fn exchange(data_dir: &Path, request: &ControlRequest) -> anyhow::Result<ControlResponse> {
    match exchange_if_running(data_dir, request)? {
        Some(answer) => Ok(answer),
        None => {
            let path = data_dir.display();
            bail!("no server runs on the data directory {path}: start one, or name its --data-dir")
        }
    }
}

/// Sends a request; `None` if no server runs on `data_dir`.
pub(crate) fn exchange_if_running(
    data_dir: &Path,
    request: &ControlRequest,
) -> anyhow::Result<Option<ControlResponse>> {
    let Some(stream) = ask_if_running(data_dir, request)? else { return Ok(None) };
    read_response(&mut BufReader::new((&stream).take(LINE_BYTES_MAX))).map(Some)
}

/// Begins a backup; `None` if no server runs on `data_dir`.
pub(crate) fn begin_backup_if_running(
    data_dir: &Path,
) -> anyhow::Result<Option<RemoteBackupPoint>> {
    let Some(stream) = ask_if_running(data_dir, &ControlRequest::Backup)? else {
        return Ok(None);
    };
    stream.set_read_timeout(Some(BACKUP_RESPONSE_MAX)).context("bound the wait for an answer")?;
    let mut reader = BufReader::new(&stream);
    let document = match read_response(&mut (&mut reader).take(LINE_BYTES_MAX))? {
        ControlResponse::Backup(document) => document,
        ControlResponse::Refused(reason) => bail!(reason),
        _ => bail!("the server answers another question"),
    };
    let mut bytes = Vec::new();
    let length = document.manifest_bytes.min(MANIFEST_BYTES_MAX);
    reader.take(length).read_to_end(&mut bytes).context("read the server's manifest")?;
    let manifest = Manifest::decode(&bytes)
        .context("the server's manifest arrived incomplete: make the backup again")?;
    let mark =
        WallMark { wall: SysTime(document.mark_ms), is_confirmed: document.is_mark_confirmed };
    let (end, frontier) = (document.end, Hlc::from_bits(document.frontier));
    let point = JournalPoint { manifest, end, frontier, mark };
    Ok(Some(RemoteBackupPoint { point, connection: stream }))
}

/// Sends a request; `None` if no server runs on `data_dir`.
fn ask_if_running(data_dir: &Path, request: &ControlRequest) -> anyhow::Result<Option<UnixStream>> {
    let path = data_dir.display();
    let directory = match std::fs::File::open(data_dir) {
        Ok(directory) => directory,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            bail!("there is no data directory {path}: name that of the server with --data-dir")
        }
        Err(error) => return Err(error).context(format!("open the data directory {path}")),
    };
    let stream = match UnixStream::connect(short_path(&directory, SOCKET)) {
        Ok(stream) => stream,
        Err(error) if no_server(&error) => return Ok(None),
        Err(error) => return Err(error).context(format!("ask the server of {path}")),
    };
    stream.set_read_timeout(Some(RESPONSE_MAX)).context("bound the wait for an answer")?;
    let mut line = serde_json::to_vec(request).context("spell the question")?;
    line.push(b'\n');
    (&stream).write_all(&line).context("ask the server")?;
    Ok(Some(stream))
}

fn read_response(reader: &mut impl BufRead) -> anyhow::Result<ControlResponse> {
    let mut answer = String::new();
    reader.read_line(&mut answer).context("wait for the server's answer")?;
    serde_json::from_str(&answer).context("read the server's answer")
}

fn no_server(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// The path of a socket through an open directory: the full path may be longer than a socket
/// address allows.
fn short_path(directory: &std::fs::File, name: &str) -> PathBuf {
    format!("/proc/self/fd/{}/{name}", directory.as_raw_fd()).into()
}

/// The parts of the server that requests use.
#[derive(Clone)]
pub(crate) struct ControlContext {
    pub(crate) mounts: FuseMounts,
    pub(crate) engine: Arc<Engine>,
}

/// The socket of a running server.
#[derive(Debug)]
pub(crate) struct ControlSocket {
    path: PathBuf,
    task: JoinHandle<()>,
}

impl ControlSocket {
    /// Listens in `data_dir`, which this process has locked. Replaces the socket that a killed
    /// server left.
    pub(crate) fn open(data_dir: &Path, context: ControlContext) -> io::Result<ControlSocket> {
        let directory = std::fs::File::open(data_dir)?;
        let (before, path) = (data_dir.join(SOCKET_TEMPORARY), data_dir.join(SOCKET));
        match std::fs::remove_file(&before) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(short_path(&directory, SOCKET_TEMPORARY))?;
        std::fs::set_permissions(&before, std::fs::Permissions::from_mode(0o600))?;
        std::fs::rename(&before, &path)?;
        let task = tokio::spawn(listen(listener, context));
        Ok(ControlSocket { path, task })
    }

    /// Stops listening and removes the socket.
    pub(crate) fn close(&self) {
        self.task.abort();
        let _ = std::fs::remove_file(&self.path);
    }
}

async fn listen(listener: UnixListener, context: ControlContext) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
                    tracing::debug!("too many ask at the control socket; refused");
                    continue;
                };
                let context = context.clone();
                tokio::spawn(async move {
                    let _place = place;
                    if let Err(error) = serve(stream, context).await {
                        tracing::debug!(%error, "somebody asked and did not hear the answer");
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "nobody can connect to the control socket for now");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn serve(mut stream: tokio::net::UnixStream, context: ControlContext) -> io::Result<()> {
    let owner = local_principal(stream.peer_cred()?.uid());
    let (reading, mut writing) = stream.split();
    let mut line = String::new();
    let mut reader = tokio::io::BufReader::new(reading.take(LINE_BYTES_MAX));
    tokio::time::timeout(REQUEST_MAX, reader.read_line(&mut line)).await??;
    let answer = match serde_json::from_str::<ControlRequest>(&line) {
        Ok(
            request @ (ControlRequest::Users
            | ControlRequest::SetUser { .. }
            | ControlRequest::RemoveUser { .. }),
        ) => match change_users(context.engine.security(), owner, request).await {
            Ok(answer) => answer,
            Err(error) => ControlResponse::Refused(format!("{error:#}")),
        },
        Ok(ControlRequest::Backup) => {
            return serve_backup(reader.into_inner().into_inner(), writing, &context.engine).await;
        }
        Ok(request) => {
            tokio::task::spawn_blocking(move || handle_request(request, &context)).await?
        }
        Err(error) => {
            ControlResponse::Refused(format!("not a question that this version knows: {error}"))
        }
    };
    write_line(&mut writing, &answer, &[]).await
}

/// Writes a response, and what follows it.
async fn write_line(
    writing: &mut (impl AsyncWrite + Unpin),
    answer: &ControlResponse,
    rest: &[u8],
) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    line.extend_from_slice(rest);
    tokio::time::timeout(REQUEST_MAX, writing.write_all(&line)).await?
}

/// Begins a backup, and keeps its files until the client has gone.
async fn serve_backup(
    mut reading: impl AsyncRead + Unpin,
    mut writing: impl AsyncWrite + Unpin,
    engine: &Arc<Engine>,
) -> io::Result<()> {
    let begun_at = std::time::Instant::now();
    let begin = Arc::clone(engine);
    let begun = tokio::task::spawn_blocking(move || begin.core().maintenance().begin_backup());
    let begun = match begun.await? {
        Ok(begun) => begun,
        Err(error) => {
            let refused = ControlResponse::Refused(format!("begin a backup: {error}"));
            return write_line(&mut writing, &refused, &[]).await;
        }
    };
    let point = &begun.point;
    let frontier = point.frontier;
    tracing::info!(%frontier, "a backup has begun: no space is reclaimed until it ends");
    let manifest = point.manifest.encode();
    let document = BackupPointDocument {
        manifest_bytes: manifest.len() as u64,
        end: point.end,
        frontier: frontier.bits(),
        mark_ms: point.mark.wall.0,
        is_mark_confirmed: point.mark.is_confirmed,
    };
    write_line(&mut writing, &ControlResponse::Backup(document), &manifest).await?;
    // The client says nothing more.
    let ended = loop {
        match tokio::time::timeout(BACKUP_LONG, reading.read(&mut [0])).await {
            Ok(ended) => break ended.map(drop),
            Err(_) => {
                let (engine, seconds) = (Arc::clone(engine), begun_at.elapsed().as_secs());
                let look = move || engine.core().maintenance().backup_held_bytes();
                let held_bytes = tokio::task::spawn_blocking(look).await?;
                tracing::warn!(
                    seconds,
                    held_bytes,
                    "a backup still runs: the server reclaims no space until it ends"
                );
            }
        }
    };
    drop(begun);
    let seconds = begun_at.elapsed().as_secs();
    tracing::info!(%frontier, seconds, "a backup has ended");
    ended
}

fn handle_request(request: ControlRequest, context: &ControlContext) -> ControlResponse {
    let ControlContext { mounts, engine } = context;
    let timekeeper = engine.timekeeper();
    let result = match request {
        ControlRequest::ClockStatus => return ControlResponse::Clock(ClockStatus::of(timekeeper)),
        ControlRequest::ClockConfirm => {
            if timekeeper.confirm().is_none() {
                tracing::info!("an operator confirmed the clock");
            }
            return ControlResponse::Clock(ClockStatus::of(timekeeper));
        }
        ControlRequest::Mount { directory, shows_uncommitted } => {
            let isolation =
                if shows_uncommitted { Isolation::Uncommitted } else { Isolation::Committed };
            mounts.mount(&directory, isolation).map(|path| vec![path])
        }
        ControlRequest::Umount { directory, lazily } => {
            mounts.unmount(&directory, lazily).map(|path| vec![path])
        }
        ControlRequest::Mounts => Ok(mounts.list()),
        ControlRequest::Users
        | ControlRequest::SetUser { .. }
        | ControlRequest::RemoveUser { .. }
        | ControlRequest::Backup => unreachable!("they have another way"),
    };
    result.map_or_else(|error| ControlResponse::Refused(error.to_string()), ControlResponse::Done)
}

/// The principal of a user of this machine, in the log of changes.
pub(crate) fn local_principal(uid: u32) -> Actor {
    Actor { principal: format!("Local:uid-{uid}"), from: "this machine".to_owned() }
}

/// Serves a request about users.
pub(crate) async fn change_users(
    security: &Arc<Security>,
    actor: Actor,
    request: ControlRequest,
) -> anyhow::Result<ControlResponse> {
    let (user, ended_tokens) = match request {
        ControlRequest::SetUser { name, credentials } => {
            anyhow::ensure!(!name.is_empty(), "a user has a name");
            let changes = credentials.into_iter().map(|(mechanism, credential)| {
                SecurityChange::CredentialSet { user: name.clone(), mechanism, credential }
            });
            let changes: Vec<SecurityChange> = changes.collect();
            let ((), ended_tokens) = security.change_users(actor, |_| (changes, ())).await?;
            (name, ended_tokens)
        }
        ControlRequest::RemoveUser { name } => {
            let user = name.clone();
            let decide = move |state: &SecurityState| {
                let credentials = state.users().get(&user);
                let mechanisms = credentials.into_iter().flat_map(BTreeMap::keys);
                let removed = mechanisms.map(|mechanism| SecurityChange::CredentialRemoved {
                    user: user.clone(),
                    mechanism: *mechanism,
                });
                (removed.collect(), credentials.is_some())
            };
            let (is_known, ended_tokens) = security.change_users(actor, decide).await?;
            anyhow::ensure!(is_known, "there is no user {name}");
            (name, ended_tokens)
        }
        _ => return Ok(ControlResponse::Users(list_users(security))),
    };
    Ok(ControlResponse::UserChanged { ended_tokens: ended_tokens.get(&user).copied() })
}

/// All users with a password.
fn list_users(security: &Security) -> Vec<LocalUser> {
    let state = security.state();
    let users = state.users().iter().map(|(name, credentials)| LocalUser {
        name: name.clone(),
        mechanisms: credentials
            .iter()
            .map(|(mechanism, credential)| (*mechanism, credential.iterations))
            .collect(),
    });
    users.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_a_line_that_a_person_can_write() {
        let line = |request| serde_json::to_string(&request).unwrap();
        let directory = PathBuf::from("/mnt/a");
        assert_eq!(
            line(ControlRequest::Mount { directory: directory.clone(), shows_uncommitted: true }),
            r#"{"mount":{"directory":"/mnt/a","shows_uncommitted":true}}"#
        );
        let without_isolation =
            serde_json::from_str::<ControlRequest>(r#"{"mount":{"directory":"/mnt/a"}}"#);
        let mount =
            ControlRequest::Mount { directory: directory.clone(), shows_uncommitted: false };
        assert_eq!(line(without_isolation.unwrap()), line(mount));
        assert_eq!(
            line(ControlRequest::Umount { directory, lazily: true }),
            r#"{"umount":{"directory":"/mnt/a","lazily":true}}"#
        );
        assert_eq!(line(ControlRequest::Mounts), r#""mounts""#);
        assert_eq!(line(ControlRequest::Backup), r#""backup""#);
        assert_eq!(line(ControlRequest::ClockStatus), r#""clock-status""#);
        assert_eq!(line(ControlRequest::ClockConfirm), r#""clock-confirm""#);
        assert!(serde_json::from_str::<ControlRequest>(r#"{"mount":{}}"#).is_err());
    }
}
