//! Mount points: whether a mount is possible, what is mounted already, and unmounting.

use std::ffi::{CString, OsStr, OsString};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use super::MountError;

/// The type of our mounts in `/proc/self/mountinfo`.
const FILE_SYSTEM: &str = "fuse.freezeframe";
const DEVICE: &str = "/dev/fuse";
/// The prefix of the data directory in the source of our mounts.
const SOURCE: &str = "freezeframe:";

/// A mount, as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MountEntry {
    /// The major and minor number of the mounted device.
    device: String,
    path: PathBuf,
    file_system: String,
    source: Vec<u8>,
}

/// Parses mounts, one a line, as in `/proc/self/mountinfo`.
fn parse(lines: &[u8]) -> Vec<MountEntry> {
    lines.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let dash = fields.iter().position(|field| *field == b"-")?;
    Some(MountEntry {
        device: String::from_utf8_lossy(fields.get(2)?).into_owned(),
        path: PathBuf::from(OsString::from_vec(unescape(fields.get(4)?))),
        file_system: String::from_utf8_lossy(fields.get(dash + 1)?).into_owned(),
        source: unescape(fields.get(dash + 2)?),
    })
}

/// Decodes `\040` and similar escapes.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        let digits = if *first == b'\\' { rest.get(..3) } else { None };
        let octal = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|octal| u8::from_str_radix(octal, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &rest[3..];
            }
            None => bytes.push(*first),
        }
    }
    bytes
}

/// The topmost mount at `path`.
pub(super) fn mounted_at(path: &Path) -> Option<MountEntry> {
    let lines = std::fs::read("/proc/self/mountinfo").ok()?;
    parse(&lines).into_iter().rfind(|entry| entry.path == path)
}

/// The source of our mounts, which names the data directory.
pub(super) fn source(data_dir: &Path) -> OsString {
    let path = std::fs::canonicalize(data_dir).unwrap_or_else(|_| absolute(data_dir));
    let mut source = OsString::from(SOURCE);
    source.push(path);
    source
}

/// The data directory of the server that mounted its tree at `directory`, from the mount's source.
pub(super) fn data_dir_of(directory: &Path) -> Option<PathBuf> {
    let mounted_data_dir = |path: &Path| {
        let entry = mounted_at(path).filter(|entry| entry.file_system == FILE_SYSTEM)?;
        let data_dir = entry.source.strip_prefix(SOURCE.as_bytes())?;
        Some(PathBuf::from(OsString::from_vec(data_dir.to_vec())))
    };
    // A mount that no longer responds is found by its name.
    mounted_data_dir(&absolute(directory))
        .or_else(|| mounted_data_dir(&std::fs::canonicalize(directory).ok()?))
}

/// Removes `.` and `..` from a path without I/O, for a path that cannot be inspected.
pub(super) fn absolute(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            std::path::Component::ParentDir => {
                plain.pop();
            }
            component => plain.push(component),
        }
    }
    plain
}

/// Checks that `directory` can be a mount point. Returns its path with symlinks resolved.
pub(super) fn check_mount_point(directory: &Path, data_dir: &Path) -> Result<PathBuf, MountError> {
    detach_dead_mount(directory)?;
    let path = std::fs::canonicalize(directory).map_err(|source| cannot_use(directory, source))?;
    let metadata = std::fs::metadata(&path).map_err(|source| cannot_use(directory, source))?;
    if !metadata.is_dir() {
        return Err(MountError::NotDirectory(path));
    }
    if let Some(entry) = mounted_at(&path) {
        return Err(MountError::Busy { directory: path, by: entry.file_system });
    }
    let data_dir = std::fs::canonicalize(data_dir).unwrap_or_else(|_| data_dir.to_owned());
    if path.starts_with(&data_dir) || data_dir.starts_with(&path) {
        return Err(MountError::DataDirectory { directory: path, data_dir });
    }
    let mut names = std::fs::read_dir(&path).map_err(|source| cannot_use(directory, source))?;
    match names.next() {
        None => Ok(path),
        Some(_) => Err(MountError::NotEmpty(path)),
    }
}

fn cannot_use(directory: &Path, source: std::io::Error) -> MountError {
    let directory = directory.to_owned();
    match source.kind() {
        std::io::ErrorKind::NotFound => MountError::NotFound(directory),
        std::io::ErrorKind::NotADirectory => MountError::NotDirectory(directory),
        _ => MountError::CannotUse { directory, source },
    }
}

/// Unmounts what a killed server left mounted: it no longer responds.
fn detach_dead_mount(directory: &Path) -> Result<(), MountError> {
    let is_dead = |error: &std::io::Error| {
        error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error())
            || error.raw_os_error() == Some(Errno::CONNABORTED.raw_os_error())
    };
    let Err(error) = std::fs::metadata(directory) else { return Ok(()) };
    let path = absolute(directory);
    if !is_dead(&error) || mounted_at(&path).is_none_or(|at| at.file_system != FILE_SYSTEM) {
        return Ok(());
    }
    tracing::info!(directory = %path.display(), "unmounting the mount of a server that has ended");
    detach(&path, UnmountFlags::DETACH)
        .map_err(|source| MountError::CannotUse { directory: path, source: source.into() })
}

/// The result of a direct mount: a connection to the kernel, if it is permitted.
pub(super) enum FuseConnection {
    /// Mounted. The kernel's requests come from this device.
    Mounted(std::fs::File),
    /// This user may not mount without help.
    NotPermitted,
}

/// Mounts at `path`, without `fusermount3`.
pub(super) fn mount(path: &Path, source: &OsStr) -> Result<FuseConnection, MountError> {
    let device =
        std::fs::File::options().read(true).write(true).open(DEVICE).map_err(MountError::NoFuse)?;
    let metadata = std::fs::metadata(path).map_err(|source| cannot_use(path, source))?;
    let options = format!(
        "fd={},rootmode={:o},user_id={},group_id={},default_permissions,allow_other",
        device.as_raw_fd(),
        metadata.mode() & 0o170_000,
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    let options = CString::new(options).expect("it has no zero byte");
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    match rustix::mount::mount(source, path, FILE_SYSTEM, flags, Some(options.as_c_str())) {
        Ok(()) => Ok(FuseConnection::Mounted(device)),
        Err(Errno::PERM) => Ok(FuseConnection::NotPermitted),
        Err(error) => {
            let (directory, source) = (path.to_owned(), error.into());
            Err(MountError::CannotUse { directory, source })
        }
    }
}

/// Unmounts `path`, if the mount there still is `entry`.
pub(super) fn unmount(path: &Path, entry: &MountEntry, lazily: bool) -> Result<(), MountError> {
    if mounted_at(path).as_ref() != Some(entry) {
        return Ok(());
    }
    let flags = if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match detach(path, flags) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(MountError::InUse(path.to_owned())),
        Err(Errno::PERM) => unmount_with_fusermount(path, lazily),
        Err(error) => {
            let (directory, source) = (path.to_owned(), error.into());
            Err(MountError::CannotUse { directory, source })
        }
    }
}

fn detach(path: &Path, flags: UnmountFlags) -> Result<(), Errno> {
    rustix::mount::unmount(path, flags | UnmountFlags::NOFOLLOW)
}

/// Unmounts what was just mounted and could not be served.
pub(super) fn detach_unserved_mount(path: &Path) {
    if let Err(error) = detach(path, UnmountFlags::DETACH) {
        tracing::warn!(%error, directory = %path.display(), "a mount could not be unmounted");
    }
}

/// Runs `fusermount3`, which may unmount for users who are not root.
fn unmount_with_fusermount(path: &Path, lazily: bool) -> Result<(), MountError> {
    let mut arguments = vec![OsStr::new("-u")];
    arguments.extend(lazily.then_some(OsStr::new("-z")));
    arguments.extend([OsStr::new("--"), path.as_os_str()]);
    let ended = Command::new("fusermount3").args(arguments).output();
    match ended.map_err(MountError::NoFusermount)? {
        ended if ended.status.success() => Ok(()),
        ended => {
            let stderr = OsStr::from_bytes(&ended.stderr).to_string_lossy().trim().to_owned();
            let (directory, source) = (path.to_owned(), std::io::Error::other(stderr));
            Err(MountError::CannotUse { directory, source })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_list_of_mounts_is_read() {
        let lines = b"22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
            40 22 0:38 / /mnt/a\\040b\\134c rw - fuse.freezeframe freezeframe:/d\\040x rw,user_id=0\n\
            short line\n";
        let entries = parse(lines);
        assert_eq!(entries.len(), 2);
        assert_eq!(entries[1].path, Path::new("/mnt/a b\\c"));
        assert_eq!(entries[1].source, b"freezeframe:/d x");
        assert_eq!((&*entries[1].file_system, &*entries[1].device), (FILE_SYSTEM, "0:38"));
    }

    #[test]
    fn a_path_that_cannot_be_looked_at_is_made_plain_by_name() {
        assert_eq!(absolute(Path::new("/a/b/../c/./d/")), Path::new("/a/c/d"));
        assert_eq!(absolute(Path::new("/../a")), Path::new("/a"));
    }
}
