//! The versions of znodes in the catalog: keys and values.

use bytes::Bytes;
use engine_core::EngineError;
use engine_core::numbering::ZNODES_LOG;
use hlc::{Cut, Hlc};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use storage::catalog::{AppliedOffset, Catalog, CatalogError, CatalogWriteBatch, escape, unescape};

use crate::checkpoint::CheckpointSession;
use crate::child_list::ChildList;
use crate::meta::ZnodeMeta;
use crate::request::SessionId;

/// The number of versions in one batch.
const PUTS_PER_BATCH: usize = 100;

/// The key prefix of znodes. Groups and files use other letters.
pub(crate) const PREFIX: u8 = b'z';
/// A name in its parent: everything about a znode but data that is long.
const NAME: u8 = b'n';
/// The root, which has no name.
const ROOT: u8 = b'r';
/// The data of a znode, if it is long.
const DATA: u8 = b'd';
/// Names of children ([`crate::child_list`]).
const CHILDREN: u8 = b'c';
/// The ephemeral znodes of a session, now.
const EPHEMERAL: u8 = b'e';
/// The ephemeral znodes that a session had when it ended.
const SESSION_END: u8 = b'x';
const SESSION: u8 = b's';
/// Between a parent's path and a name. [`escape`] never writes it.
const SEPARATOR: &[u8] = &[1, 3];
/// Longer data is apart from the rest, because a znode has a new version whenever a child comes or
/// goes.
const DATA_BYTES_MAX: usize = 256;

/// A znode as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ZnodeVersion {
    pub(crate) meta: ZnodeMeta,
    data: VersionData,
    pub(crate) children: ChildList,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum VersionData {
    Here(Option<Bytes>),
    Apart,
}

impl ZnodeVersion {
    pub(crate) fn new(meta: ZnodeMeta, data: Option<&Bytes>) -> ZnodeVersion {
        let mut version =
            ZnodeVersion { meta, data: VersionData::Apart, children: ChildList::default() };
        version.set_data(data);
        version
    }

    fn built_in(path: &str) -> Option<ZnodeVersion> {
        Some(ZnodeVersion::new(ZnodeMeta::built_in(path)?, Some(&Bytes::new())))
    }

    pub(crate) fn set_data(&mut self, data: Option<&Bytes>) {
        self.data = if data.is_some_and(|data| data.len() > DATA_BYTES_MAX) {
            VersionData::Apart
        } else {
            VersionData::Here(data.cloned())
        };
    }

    /// Returns true if its data is apart.
    pub(crate) fn is_apart(&self) -> bool {
        self.data == VersionData::Apart
    }

    /// Its data. It is the version in `cut`.
    pub(crate) fn data(
        self,
        catalog: &Catalog,
        path: &str,
        cut: Cut,
    ) -> Result<Option<Bytes>, EngineError> {
        match self.data {
            VersionData::Here(data) => Ok(data),
            VersionData::Apart => match catalog.get(&data_key(path), cut)? {
                Some((_, data)) => Ok(Some(Bytes::from(data))),
                None => Err(EngineError::Corrupt(format!(
                    "the catalog lacks the data of the znode {path:?}"
                ))),
            },
        }
    }
}

/// Writes versions in batches of bounded size: one of a single transaction costs the catalog as
/// much as one of many, and a very large one far more memory.
pub(crate) struct VersionWriter<'a> {
    catalog: &'a Catalog,
    batch: CatalogWriteBatch,
    puts: usize,
}

impl<'a> VersionWriter<'a> {
    pub(crate) fn new(catalog: &'a Catalog) -> VersionWriter<'a> {
        VersionWriter { catalog, batch: CatalogWriteBatch::default(), puts: 0 }
    }

    /// The batch for the next version.
    pub(crate) fn next(&mut self) -> Result<&mut CatalogWriteBatch, CatalogError> {
        if self.puts >= PUTS_PER_BATCH {
            self.flush()?;
        }
        self.puts += 1;
        Ok(&mut self.batch)
    }

    /// Returns true if a batch is full.
    pub(crate) fn is_full(&self) -> bool {
        self.puts >= PUTS_PER_BATCH
    }

    /// Writes what there is, between two transactions or within one.
    pub(crate) fn flush(&mut self) -> Result<(), CatalogError> {
        self.puts = 0;
        self.catalog.apply_unpositioned(std::mem::take(&mut self.batch))
    }

    /// Writes what there is, and that everything up to `applied` is in the catalog.
    pub(crate) fn flush_at(&mut self, applied: AppliedOffset) -> Result<(), CatalogError> {
        self.puts = 0;
        self.catalog.apply_in(std::mem::take(&mut self.batch), ZNODES_LOG, applied)
    }
}

/// The version of a znode in `cut`.
pub(crate) fn version(
    catalog: &Catalog,
    path: &str,
    cut: Cut,
) -> Result<Option<ZnodeVersion>, EngineError> {
    Ok(stamped_version(catalog, path, cut)?.map(|(_, version)| version))
}

/// The same, and when it began.
pub(crate) fn stamped_version(
    catalog: &Catalog,
    path: &str,
    cut: Cut,
) -> Result<Option<(Hlc, ZnodeVersion)>, EngineError> {
    match catalog.get(&version_key(path), cut)? {
        Some((stamp, value)) => Ok(Some((stamp, decode(&value)?))),
        None => Ok(ZnodeVersion::built_in(path).map(|version| (Hlc::default(), version))),
    }
}

pub(crate) fn version_key(path: &str) -> Vec<u8> {
    match path.rsplit_once('/') {
        Some((parent, name)) => name_key(parent, name),
        None => vec![PREFIX, ROOT],
    }
}

pub(crate) fn name_key(parent: &str, name: &str) -> Vec<u8> {
    let mut key = vec![PREFIX, NAME];
    escape(parent, &mut key);
    key.extend_from_slice(SEPARATOR);
    escape(name, &mut key);
    key
}

/// The keys of all znodes below `path` begin with this; those of some others do too.
pub(crate) fn subtree_prefix(path: &str) -> Vec<u8> {
    let mut key = vec![PREFIX, NAME];
    escape(path, &mut key);
    key
}

/// The path of a key of [`version_key`]; `None` for the root.
pub(crate) fn key_path(key: &[u8]) -> Option<String> {
    let names = key.strip_prefix(&[PREFIX, NAME])?;
    let end = names.windows(SEPARATOR.len()).position(|bytes| bytes == SEPARATOR)?;
    let (parent, name) = (&names[..end], &names[end + SEPARATOR.len()..]);
    Some(format!("{}/{}", unescape(parent), unescape(name)))
}

pub(crate) fn data_key(path: &str) -> Vec<u8> {
    let mut key = vec![PREFIX, DATA];
    escape(path, &mut key);
    key
}

pub(crate) fn child_chunk_key(path: &str, chunk: u32) -> Vec<u8> {
    children_key(path, 'n', chunk)
}

pub(crate) fn child_slot_key(path: &str, slot: u32) -> Vec<u8> {
    children_key(path, 's', slot)
}

fn children_key(path: &str, kind: char, index: u32) -> Vec<u8> {
    let mut key = vec![PREFIX, CHILDREN];
    escape(path, &mut key);
    key.extend_from_slice(SEPARATOR);
    key.extend_from_slice(format!("{kind}{index:08x}").as_bytes());
    key
}

pub(crate) fn ephemeral_key(session: SessionId, path: &str) -> Vec<u8> {
    let mut key = vec![PREFIX, EPHEMERAL];
    key.extend_from_slice(format!("{:016x}", session.0).as_bytes());
    escape(path, &mut key);
    key
}

pub(crate) fn session_end_key(session: SessionId) -> Vec<u8> {
    let mut key = vec![PREFIX, SESSION_END];
    key.extend_from_slice(format!("{:016x}", session.0).as_bytes());
    key
}

/// The keys of all sessions begin with this.
pub(crate) fn sessions_prefix() -> [u8; 2] {
    [PREFIX, SESSION]
}

/// Sets a session from `stamp` on; `None` ends it.
pub(crate) fn put_session(
    versions: &mut CatalogWriteBatch,
    stamp: Hlc,
    id: SessionId,
    session: Option<&CheckpointSession>,
) {
    let mut key = sessions_prefix().to_vec();
    key.extend_from_slice(format!("{:016x}", id.0).as_bytes());
    versions.put(&key, stamp, session.map(encode).as_deref());
}

pub(crate) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_stdvec(value).expect("a value of the catalog can be encoded")
}

pub(crate) fn decode<T: DeserializeOwned>(value: &[u8]) -> Result<T, EngineError> {
    postcard::from_bytes(value)
        .map_err(|error| EngineError::Corrupt(format!("decode the catalog's value: {error}")))
}
