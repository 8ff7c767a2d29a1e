//! A plain model of files: names in a map, bytes in arrays. It implements the rules of POSIX again,
//! from POSIX, and not from the code under test.

#![allow(dead_code, unreachable_pub, missing_docs, reason = "it belongs to the tests")]

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use rustix::io::Errno;

/// Bytes are kept from the beginning of a file up to this offset.
pub const LOW: u64 = 300 << 10;
/// Bytes are also kept from this offset to the largest file size. Nobody writes in between.
pub const HIGH: u64 = END - LOW;
pub const END: u64 = 1 << 62;

pub const EPERM: i32 = Errno::PERM.raw_os_error();
pub const ENOENT: i32 = Errno::NOENT.raw_os_error();
pub const EEXIST: i32 = Errno::EXIST.raw_os_error();
pub const ENOTDIR: i32 = Errno::NOTDIR.raw_os_error();
pub const EISDIR: i32 = Errno::ISDIR.raw_os_error();
pub const EINVAL: i32 = Errno::INVAL.raw_os_error();
pub const ENOTEMPTY: i32 = Errno::NOTEMPTY.raw_os_error();

/// A file's bytes. Bytes in neither array are zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelBytes {
    pub length: u64,
    low: Arc<Vec<u8>>,
    high: Arc<Vec<u8>>,
}

impl ModelBytes {
    fn window(&mut self, range: Range<u64>) -> &mut [u8] {
        let (base, window) =
            if range.start < LOW { (0, &mut self.low) } else { (HIGH, &mut self.high) };
        let window = Arc::make_mut(window);
        let range = (range.start - base) as usize..(range.end - base) as usize;
        window.resize(window.len().max(range.end), 0);
        &mut window[range]
    }

    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        let end = at + bytes.len() as u64;
        self.window(at..end).copy_from_slice(bytes);
        self.length = self.length.max(end);
    }

    pub fn truncate(&mut self, length: u64) {
        self.zero(length..END);
        self.length = length;
    }

    pub fn extend(&mut self, length: u64) {
        self.length = self.length.max(length);
    }

    pub fn zero(&mut self, range: Range<u64>) {
        for (base, window) in [(0, &mut self.low), (HIGH, &mut self.high)] {
            let length = window.len() as u64;
            let from = range.start.saturating_sub(base).min(length) as usize;
            let to = range.end.saturating_sub(base).min(length) as usize;
            if from < to {
                Arc::make_mut(window)[from..to].fill(0);
            }
        }
    }

    /// The bytes of `range`, up to the end of the file.
    pub fn read(&self, range: Range<u64>) -> Vec<u8> {
        let end = range.end.min(self.length).max(range.start);
        let mut read = vec![0; (end - range.start) as usize];
        for (base, window) in [(0, &self.low), (HIGH, &self.high)] {
            let (from, to) = (base.max(range.start), (base + window.len() as u64).min(end));
            if from < to {
                let bytes = &window[(from - base) as usize..(to - base) as usize];
                read[(from - range.start) as usize..(to - range.start) as usize]
                    .copy_from_slice(bytes);
            }
        }
        read
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelKind {
    File(ModelBytes),
    Directory { parent: usize },
    Link(Vec<u8>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelNode {
    pub kind: ModelKind,
    pub mode: u32,
    pub extended: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl ModelNode {
    pub fn is_directory(&self) -> bool {
        matches!(self.kind, ModelKind::Directory { .. })
    }
}

/// All files; the first node is the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileModel {
    pub nodes: Vec<ModelNode>,
    pub names: BTreeMap<(usize, String), usize>,
}

pub type ModelName = (usize, String);

impl FileModel {
    pub fn new() -> FileModel {
        let kind = ModelKind::Directory { parent: 0 };
        let root = ModelNode { kind, mode: 0o755, extended: BTreeMap::new() };
        FileModel { nodes: vec![root], names: BTreeMap::new() }
    }

    pub fn links(&self, node: usize) -> usize {
        let names = self.names.values().filter(|child| **child == node).count();
        if !self.nodes[node].is_directory() {
            return names;
        }
        if names == 0 && node != 0 {
            return 0;
        }
        let below = self
            .names
            .iter()
            .filter(|((parent, _), child)| *parent == node && self.nodes[**child].is_directory());
        2 + below.count()
    }

    pub fn names_in(&self, directory: usize) -> BTreeMap<&str, usize> {
        let within = self.names.range((directory, String::new())..(directory + 1, String::new()));
        within.map(|((_, name), node)| (name.as_str(), *node)).collect()
    }

    fn lookup(&self, place: &ModelName) -> Result<Option<usize>, i32> {
        match (self.nodes[place.0].is_directory(), self.links(place.0)) {
            (false, _) => Err(ENOTDIR),
            (true, 0) => Err(ENOENT),
            _ => Ok(self.names.get(place).copied()),
        }
    }

    pub fn make(&mut self, at: &ModelName, kind: ModelKind, mode: u32) -> Result<usize, i32> {
        if self.lookup(at)?.is_some() {
            return Err(EEXIST);
        }
        self.nodes.push(ModelNode { kind, mode, extended: BTreeMap::new() });
        self.names.insert(at.clone(), self.nodes.len() - 1);
        Ok(self.nodes.len() - 1)
    }

    pub fn link(&mut self, node: usize, at: &ModelName) -> Result<(), i32> {
        if self.nodes[node].is_directory() {
            return Err(EPERM);
        }
        if self.lookup(at)?.is_some() {
            return Err(EEXIST);
        }
        if self.links(node) == 0 {
            return Err(ENOENT);
        }
        self.names.insert(at.clone(), node);
        Ok(())
    }

    pub fn remove(&mut self, at: &ModelName, directory: bool) -> Result<(), i32> {
        let node = self.lookup(at)?.ok_or(ENOENT)?;
        match (directory, self.nodes[node].is_directory()) {
            (true, false) => return Err(ENOTDIR),
            (false, true) => return Err(EISDIR),
            (true, true) if !self.names_in(node).is_empty() => return Err(ENOTEMPTY),
            _ => {}
        }
        self.names.remove(at);
        Ok(())
    }

    /// Returns true if `directory` is `above` or one of its descendants.
    fn is_in(&self, directory: usize, above: usize) -> bool {
        let mut at = directory;
        loop {
            match self.nodes[at].kind {
                _ if at == above => return true,
                ModelKind::Directory { parent } if at != 0 => at = parent,
                _ => return false,
            }
        }
    }

    /// `exchange` swaps the two; otherwise `replace` says whether the new name may exist.
    pub fn rename(
        &mut self,
        from: &ModelName,
        to: &ModelName,
        replace: bool,
        exchange: bool,
    ) -> Result<(), i32> {
        let (moved, target) = (self.lookup(from)?, self.lookup(to)?);
        let moved = moved.ok_or(ENOENT)?;
        if !replace && !exchange && target.is_some() {
            return Err(EEXIST);
        }
        if self.nodes[moved].is_directory() && self.is_in(to.0, moved) {
            return Err(EINVAL);
        }
        if exchange {
            let target = target.ok_or(ENOENT)?;
            if self.nodes[target].is_directory() && self.is_in(from.0, target) {
                return Err(EINVAL);
            }
            self.set_name(to, moved);
            self.set_name(from, target);
            return Ok(());
        }
        if target == Some(moved) {
            return Ok(());
        }
        if let Some(target) = target {
            match (self.nodes[moved].is_directory(), self.nodes[target].is_directory()) {
                (true, false) => return Err(ENOTDIR),
                (false, true) => return Err(EISDIR),
                (true, true) if !self.names_in(target).is_empty() => return Err(ENOTEMPTY),
                _ => {}
            }
        }
        self.names.remove(from);
        self.set_name(to, moved);
        Ok(())
    }

    fn set_name(&mut self, at: &ModelName, node: usize) {
        self.names.insert(at.clone(), node);
        if let ModelKind::Directory { parent } = &mut self.nodes[node].kind {
            *parent = at.0;
        }
    }

    pub fn bytes(&mut self, node: usize) -> Option<&mut ModelBytes> {
        match &mut self.nodes[node].kind {
            ModelKind::File(bytes) => Some(bytes),
            _ => None,
        }
    }
}
