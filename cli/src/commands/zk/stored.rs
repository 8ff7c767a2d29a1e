//! Reads the data directory of a ZooKeeper that does not run: its newest snapshot, and the logs of
//! the transactions that came after it.
//!
//! A snapshot is written while its server goes on. It may show later states of some znodes, and the
//! transactions that made them come again in the log; so those that have no effect any more are
//! passed over, as ZooKeeper does.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use client::zookeeper::{NewZnode, ZnodeAclEntry, ZnodeKind};
use zk_wire::{JuteError, JuteReader, opcode};

const SNAPSHOT_MAGIC: i32 = i32::from_be_bytes(*b"ZKSN");
const LOG_MAGIC: i32 = i32::from_be_bytes(*b"ZKLG");
/// Behind each record of a log.
const RECORD_END: u8 = 0x42;
/// An entry of a list takes at least this.
const ACL_ENTRY_BYTES_MIN: usize = 12;
/// The owner of a container.
const CONTAINER: i64 = i64::MIN;
/// The first byte of the owner of a znode with a time to live.
const TTL_MARK: i64 = 0xff;
const TTL_MASK: i64 = (1 << 40) - 1;
const CREATE_SESSION: i32 = -10;
const DELETE_CONTAINER: i32 = 20;

/// A znode of a stored tree.
#[derive(Clone, Debug)]
struct StoredZnode {
    data: Option<Bytes>,
    acl: Vec<ZnodeAclEntry>,
    /// `ephemeralOwner`: a session, or a mark of another kind.
    owner: i64,
    /// The number of its next sequential child, which is stored as `cversion`.
    next_sequence: i32,
}

impl StoredZnode {
    fn new(data: Option<Bytes>, acl: Vec<ZnodeAclEntry>, owner: i64) -> StoredZnode {
        StoredZnode { data, acl, owner, next_sequence: 0 }
    }
}

/// The tree of a data directory.
#[derive(Debug, Default)]
pub(super) struct StoredTree {
    /// By path; the root is the empty one.
    znodes: BTreeMap<String, StoredZnode>,
    /// The ephemeral znodes of each session.
    ephemerals: HashMap<i64, BTreeSet<String>>,
    /// The last transaction in it.
    pub(super) zxid: i64,
    /// Descriptions of data that could not be read.
    pub(super) warnings: Vec<String>,
    /// True if the tree lacks transactions.
    pub(super) is_incomplete: bool,
}

/// The kind that a stored znode is to become.
pub(super) fn kind_of(owner: i64) -> Option<ZnodeKind> {
    match owner {
        0 => Some(ZnodeKind::Persistent),
        CONTAINER => Some(ZnodeKind::Container),
        owner if (owner >> 56) & 0xff == TTL_MARK => Some(ZnodeKind::Ttl(owner & TTL_MASK)),
        _ => None,
    }
}

impl StoredTree {
    /// Reads a data directory (`dataDir`), and the logs in it or in another one (`dataLogDir`).
    pub(super) fn read(data: &Path, logs: Option<&Path>) -> anyhow::Result<StoredTree> {
        let (data, logs) = (versioned(data), versioned(logs.unwrap_or(data)));
        let mut warnings = Vec::new();
        let mut tree = None;
        let snapshots = numbered(&data, "snapshot.")?;
        let newest = snapshots.last().map_or(0, |(zxid, _)| *zxid);
        for (zxid, path) in snapshots.into_iter().rev() {
            match read_snapshot(&path) {
                Ok(snapshot) => {
                    tree = Some(StoredTree { zxid, ..snapshot });
                    break;
                }
                Err(error) => warnings.push(format!("{error:#}; an older snapshot is tried")),
            }
        }
        let logs = numbered(&logs, "log.")?;
        let mut tree = match tree {
            Some(tree) => tree,
            None if logs.first().is_some_and(|(first, _)| *first <= 1) => StoredTree::default(),
            None => bail!(
                "{} has no snapshot that can be read: give the dataDir of a ZooKeeper",
                data.display()
            ),
        };
        tree.warnings = warnings;
        // The log that begins last at or before the transaction behind the snapshot has it.
        let first = logs.iter().rposition(|(begin, _)| *begin <= tree.zxid + 1).unwrap_or(0);
        for (_, path) in &logs[first.min(logs.len())..] {
            let log = read_log(path, &mut tree);
            log.with_context(|| format!("read {}", path.display()))?;
        }
        if tree.zxid < newest {
            tree.lack(format!(
                "the logs end at {:#x}, and the newest snapshot cannot be read, which is of {newest:#x}",
                tree.zxid
            ));
        }
        Ok(tree)
    }

    /// Warns of transactions that are missing.
    fn lack(&mut self, warning: String) {
        self.warnings.push(warning);
        self.is_incomplete = true;
    }

    /// The number of a znode's next sequential child.
    pub(super) fn next_sequence(&self, path: &str) -> i32 {
        self.znodes.get(path.trim_end_matches('/')).map_or(0, |znode| znode.next_sequence)
    }

    /// All znodes in the order of their paths, parents first, without ephemeral ones and those that
    /// belong to the server; and how many were ephemeral. The first is the root.
    pub(super) fn into_znodes(self) -> (Vec<NewZnode>, usize) {
        let (mut znodes, mut ephemeral) = (Vec::new(), 0);
        for (path, StoredZnode { data, acl, owner, next_sequence }) in self.znodes {
            if path == "/zookeeper" || path.starts_with("/zookeeper/") {
                continue;
            }
            let path = if path.is_empty() { "/".to_owned() } else { path };
            match kind_of(owner) {
                Some(kind) => znodes.push(NewZnode { path, data, acl, kind, next_sequence }),
                None => ephemeral += 1,
            }
        }
        (znodes, ephemeral)
    }

    /// Creates a znode, after which its parent's next sequential child has the number
    /// `next_beside`.
    fn create(&mut self, path: String, znode: StoredZnode, next_beside: i32) {
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        if parent.is_empty() && !self.znodes.contains_key(parent) {
            self.znodes.insert(String::new(), StoredZnode::new(None, ZnodeAclEntry::open(), 0));
        }
        let is_there = self.znodes.contains_key(&path);
        let Some(parent_znode) = self.znodes.get_mut(parent) else { return };
        let next = parent_znode.next_sequence;
        parent_znode.next_sequence = match next_beside {
            // Servers before 3.4 do not record it.
            -1 if !is_there => next.wrapping_add(1),
            -1 => next,
            // Also where the znode comes again: the snapshot may be older than it.
            next_beside if next_beside.wrapping_sub(next) > 0 => next_beside,
            _ => next,
        };
        if is_there {
            return;
        }
        if kind_of(znode.owner).is_none() {
            self.ephemerals.entry(znode.owner).or_default().insert(path.clone());
        }
        self.znodes.insert(path, znode);
    }

    fn delete(&mut self, path: &str) {
        if let Some(znode) = self.znodes.remove(path)
            && let Some(paths) = self.ephemerals.get_mut(&znode.owner)
        {
            paths.remove(path);
        }
    }

    /// Every transaction takes the next zxid of its epoch, which is the upper half.
    fn warn_of_gap(&mut self, name: &str, zxid: i64) {
        let (before, is_same_epoch) = (self.zxid, zxid >> 32 == self.zxid >> 32);
        if is_same_epoch && zxid != before + 1 {
            self.lack(format!(
                "{name}: the transactions between {before:#x} and {zxid:#x} are missing; what they changed is \
                 left out"
            ));
        }
    }

    /// Applies a transaction of `session`.
    fn apply(&mut self, session: i64, kind: i32, mut body: JuteReader) -> anyhow::Result<()> {
        match kind {
            opcode::CREATE | opcode::CREATE_2 => {
                let (path, data) = (body.required_string()?, body.buffer()?);
                let acl = read_acl(&mut body)?;
                let owner = if body.bool()? { session } else { 0 };
                let next_beside = body.int().unwrap_or(-1);
                self.create(path, StoredZnode::new(data, acl, owner), next_beside);
            }
            opcode::CREATE_CONTAINER | opcode::CREATE_TTL => {
                let (path, data) = (body.required_string()?, body.buffer()?);
                let acl = read_acl(&mut body)?;
                let next_beside = body.int()?;
                let owner = match kind {
                    opcode::CREATE_TTL => TTL_MARK << 56 | body.long()?,
                    _ => CONTAINER,
                };
                self.create(path, StoredZnode::new(data, acl, owner), next_beside);
            }
            opcode::DELETE | DELETE_CONTAINER => self.delete(&body.required_string()?),
            opcode::SET_DATA => {
                let (path, data) = (body.required_string()?, body.buffer()?);
                self.znodes.entry(path).and_modify(|znode| znode.data = data);
            }
            opcode::SET_ACL => {
                let path = body.required_string()?;
                let acl = read_acl(&mut body)?;
                self.znodes.entry(path).and_modify(|znode| znode.acl = acl);
            }
            opcode::CLOSE_SESSION => {
                for path in self.ephemerals.remove(&session).unwrap_or_default() {
                    self.znodes.remove(&path);
                }
            }
            opcode::MULTI => {
                const PART_BYTES_MIN: usize = 8;
                let operation = |body: &mut JuteReader| Ok((body.int()?, body.buffer()?));
                for (kind, operation) in body.vector(PART_BYTES_MIN, operation)?.unwrap_or_default()
                {
                    self.apply(session, kind, JuteReader::new(operation.unwrap_or_default()))?;
                }
            }
            // A session, a check, a failed transaction, or a configuration.
            CREATE_SESSION | opcode::CHECK | opcode::ERROR | opcode::RECONFIG => {}
            kind => bail!("the type of the transaction is not known: {kind}"),
        }
        Ok(())
    }
}

/// The directory with the files: `version-2`, unless that was given.
fn versioned(directory: &Path) -> PathBuf {
    let versioned = directory.join("version-2");
    if versioned.is_dir() { versioned } else { directory.to_owned() }
}

/// The files whose names begin so and end with a zxid in hex, by that.
fn numbered(directory: &Path, begin: &str) -> anyhow::Result<Vec<(i64, PathBuf)>> {
    let doing = || format!("list {}", directory.display());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).with_context(doing)? {
        let path = entry.with_context(doing)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(rest) = name.strip_prefix(begin) else { continue };
        let number = rest.split('.').next().unwrap_or_default();
        if let Ok(zxid) = i64::from_str_radix(number, 16) {
            files.push((zxid, path));
        }
    }
    files.sort();
    Ok(files)
}

fn read_snapshot(path: &Path) -> anyhow::Result<StoredTree> {
    let doing = || format!("read {}", path.display());
    let mut bytes = std::fs::read(path).with_context(doing)?;
    match path.extension().and_then(|end| end.to_str()) {
        Some("gz") => {
            let mut unpacked = Vec::new();
            let mut packed = flate2::read::GzDecoder::new(&bytes[..]);
            packed.read_to_end(&mut unpacked).with_context(doing)?;
            bytes = unpacked;
        }
        Some("snappy") => bail!(
            "{}: a snapshot in Snappy's format is not read; import from that ZooKeeper while it runs",
            path.display()
        ),
        _ => {}
    }
    parse_snapshot(bytes.into()).with_context(doing)
}

fn parse_snapshot(bytes: Bytes) -> anyhow::Result<StoredTree> {
    const SESSION_BYTES: usize = 12;
    const LIST_BYTES_MIN: usize = 12;
    let mut fields = JuteReader::new(bytes.clone());
    ensure!(fields.int()? == SNAPSHOT_MAGIC, "it is no snapshot of a ZooKeeper");
    ensure!(fields.int()? == 2, "its version is not known");
    fields.long()?;
    fields.vector(SESSION_BYTES, |fields| Ok((fields.long()?, fields.int()?)))?;
    let list = |fields: &mut JuteReader| Ok((fields.long()?, read_acl(fields)?));
    let lists = fields.vector(LIST_BYTES_MIN, list)?.unwrap_or_default();
    let lists: HashMap<i64, Vec<ZnodeAclEntry>> = lists.into_iter().collect();
    let mut tree = StoredTree::default();
    loop {
        let path = fields.required_string()?;
        if path == "/" {
            break;
        }
        let (data, list) = (fields.buffer()?, fields.long()?);
        for _ in 0..4 {
            fields.long()?;
        }
        let [_version, next_sequence, _aversion] = [fields.int()?, fields.int()?, fields.int()?];
        let owner = fields.long()?;
        fields.long()?;
        let acl = lists.get(&list).cloned().unwrap_or_else(ZnodeAclEntry::open);
        if kind_of(owner).is_none() {
            tree.ephemerals.entry(owner).or_default().insert(path.clone());
        }
        tree.znodes.insert(path, StoredZnode { data, acl, owner, next_sequence });
    }
    let end = bytes.len() - fields.left();
    let checksum = fields.long()?;
    let actual = i64::from(adler2::adler32_slice(&bytes[..end]));
    ensure!(checksum == actual, "its checksum is wrong: it was not written whole");
    Ok(tree)
}

/// Applies the transactions of a log that the tree does not have, up to its end: zeros, or a record
/// that was not written whole. The warnings name what is left out.
fn read_log(path: &Path, tree: &mut StoredTree) -> anyhow::Result<()> {
    parse_log(&path.display().to_string(), std::fs::read(path)?.into(), tree)
}

fn parse_log(name: &str, bytes: Bytes, tree: &mut StoredTree) -> anyhow::Result<()> {
    let mut fields = JuteReader::new(bytes);
    if fields.left() == 0 {
        return Ok(());
    }
    ensure!(fields.int()? == LOG_MAGIC, "it is no log of a ZooKeeper");
    ensure!(fields.int()? == 2, "its version is not known");
    fields.long()?;
    loop {
        let is_at_end = is_all_zero(fields.clone());
        let record = read_record(&mut fields).ok().flatten();
        let is_whole =
            |(sum, record): &(i64, Bytes)| *sum == i64::from(adler2::adler32_slice(record));
        let Some((_, record)) = record.filter(is_whole) else {
            if !is_at_end {
                let at = tree.zxid;
                tree.lack(format!(
                    "{name}: a record behind zxid {at:#x} is damaged, or was not written whole; the rest of \
                     this log is left out"
                ));
            }
            return Ok(());
        };
        let mut record = JuteReader::new(record);
        let session = record.long()?;
        record.int()?;
        let zxid = record.long()?;
        record.long()?;
        let kind = record.int()?;
        if zxid > tree.zxid {
            tree.warn_of_gap(name, zxid);
            tree.apply(session, kind, record).with_context(|| format!("transaction {zxid:#x}"))?;
            tree.zxid = zxid;
        }
    }
}

/// A record behind its checksum; `None` at the end, which is filled with zeros.
fn read_record(fields: &mut JuteReader) -> Result<Option<(i64, Bytes)>, JuteError> {
    let checksum = fields.long()?;
    let record = fields.buffer()?.unwrap_or_default();
    let end = fields.byte()?;
    Ok((!record.is_empty() && end == RECORD_END).then_some((checksum, record)))
}

fn read_acl(fields: &mut JuteReader) -> Result<Vec<ZnodeAclEntry>, JuteError> {
    let entry = |fields: &mut JuteReader| {
        Ok(ZnodeAclEntry {
            permissions: fields.int()?,
            scheme: fields.required_string()?,
            id: fields.required_string()?,
        })
    };
    Ok(fields.vector(ACL_ENTRY_BYTES_MIN, entry)?.unwrap_or_default())
}

/// True if nothing but zeros is left: logs are longer than their content.
fn is_all_zero(mut fields: JuteReader) -> bool {
    const LOOKED_AT: usize = 16;
    (0..fields.left().min(LOOKED_AT)).all(|_| fields.byte() == Ok(0))
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use zk_wire::JuteWriter;

    use super::*;

    /// A log in which each transaction creates a znode, and the first number of a sequential one
    /// beside it is then its zxid.
    fn log(zxids: &[i64]) -> Vec<u8> {
        let mut bytes = BytesMut::new();
        bytes.int(LOG_MAGIC);
        bytes.int(2);
        bytes.long(0);
        for zxid in zxids {
            let mut record = BytesMut::new();
            record.long(7);
            record.int(1);
            record.long(*zxid);
            record.long(0);
            record.int(opcode::CREATE_CONTAINER);
            record.string(Some(&format!("/n{zxid}")));
            record.buffer(Some(b"x"));
            record.int(0);
            record.int(*zxid as i32);
            bytes.long(adler2::adler32_slice(&record).into());
            bytes.buffer(Some(&record));
            bytes.extend_from_slice(&[RECORD_END]);
        }
        bytes.to_vec()
    }

    fn read(bytes: Vec<u8>) -> StoredTree {
        let mut tree = StoredTree::default();
        parse_log("log.1", bytes.into(), &mut tree).expect("it is a log");
        tree
    }

    #[test]
    fn what_is_left_out_of_a_log_is_said() {
        let mut padded = log(&[1, 2, 3]);
        padded.extend([0; 100]);
        let complete = read(padded.clone());
        assert_eq!((complete.zxid, complete.znodes.len(), complete.warnings.len()), (3, 4, 0));
        assert!(!complete.is_incomplete);
        assert_eq!(complete.next_sequence("/"), 3);
        let end = padded.len() - 100;
        let record = (end - 16) / 3;
        // The length, the content and the end of the second record.
        for at in [16 + record + 8, 16 + record + 30, 16 + 2 * record - 1] {
            let mut damaged = padded.clone();
            damaged[at] ^= 0x55;
            let read = read(damaged);
            assert_eq!((read.zxid, read.warnings.len()), (1, 1), "{at}: {:?}", read.warnings);
            assert!(read.is_incomplete);
        }
        let torn = read(log(&[1, 2])[..16 + record + 20].to_vec());
        assert_eq!((torn.zxid, torn.warnings.len()), (1, 1));
        let gap = read(log(&[1, 2, 5, (1 << 32) | 1]));
        assert_eq!((gap.znodes.len(), gap.warnings.len()), (5, 1), "{:?}", gap.warnings);
        assert!(gap.is_incomplete);
    }
}
