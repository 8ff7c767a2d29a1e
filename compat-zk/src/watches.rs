//! Watches: which connection wants to know of which path.
//!
//! As in ZooKeeper there are two tables. The data table has the watches of `getData` and `exists`, and
//! all recursive ones; the child table has those of `getChildren`. A persistent watch is in both.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use engine_znodes::acl::{self, Acl, check_permission};
use engine_znodes::{SessionId, TreeChange, TreeChangeKind, ZkCode, ZnodeTree, split_path};

use crate::connection::Connection;
use crate::event::{WatchEvent, WatchEventKind};
use crate::request::SetWatches;

/// Kinds of watches of one connection on one path, as bits.
type WatchKinds = u8;
/// It fires once.
const STANDARD: WatchKinds = 1;
const PERSISTENT: WatchKinds = 2;
/// It fires for all paths below it too.
const RECURSIVE: WatchKinds = 4;
const ANY: WatchKinds = STANDARD | PERSISTENT | RECURSIVE;

/// Which watches a `checkWatches` or a `removeWatches` means (`Watcher.WatcherType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatcherType {
    Children,
    Data,
    Any,
    Persistent,
    PersistentRecursive,
}

impl WatcherType {
    /// # Errors
    /// [`ZkCode::MarshallingError`]: there is no such type.
    pub(crate) fn from_number(number: i32) -> Result<WatcherType, ZkCode> {
        Ok(match number {
            1 => WatcherType::Children,
            2 => WatcherType::Data,
            3 => WatcherType::Any,
            4 => WatcherType::Persistent,
            5 => WatcherType::PersistentRecursive,
            _ => return Err(ZkCode::MarshallingError),
        })
    }

    /// The kinds in the data table, and in the child table.
    fn kinds(self) -> (WatchKinds, WatchKinds) {
        match self {
            WatcherType::Children => (0, STANDARD),
            WatcherType::Data => (STANDARD, 0),
            WatcherType::Any => (ANY, ANY),
            WatcherType::Persistent => (PERSISTENT, PERSISTENT),
            WatcherType::PersistentRecursive => (RECURSIVE, 0),
        }
    }
}

/// How an `addWatch` watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddWatchMode {
    Persistent,
    PersistentRecursive,
}

/// Connections by the number that they have in this process.
type ConnectionId = u64;

/// About what a watch takes besides its path.
const WATCH_BYTES: usize = 200;

/// What one connection watches.
#[derive(Debug, Default)]
struct WatchedPaths {
    paths: HashSet<Arc<str>>,
    /// About how much memory its watches take.
    bytes: usize,
}

#[derive(Debug, Default)]
struct WatchTable {
    by_path: HashMap<Arc<str>, HashMap<ConnectionId, WatchKinds>>,
    by_connection: HashMap<ConnectionId, WatchedPaths>,
    /// About how much memory all watches take.
    bytes: usize,
    /// How many recursive watches there are: without any, no parents are looked up.
    recursive: usize,
}

impl WatchTable {
    fn add(&mut self, path: &str, connection: ConnectionId, kinds: WatchKinds) {
        let path = match self.by_path.get_key_value(path) {
            Some((path, _)) => Arc::clone(path),
            None => Arc::from(path),
        };
        let held = self.by_path.entry(Arc::clone(&path)).or_default().entry(connection);
        let held = held.or_default();
        self.recursive += usize::from(kinds & !*held & RECURSIVE != 0);
        *held |= kinds;
        let bytes = WATCH_BYTES + path.len();
        let watched = self.by_connection.entry(connection).or_default();
        if watched.paths.insert(path) {
            watched.bytes += bytes;
            self.bytes += bytes;
        }
    }

    fn bytes_of(&self, connection: ConnectionId) -> usize {
        self.by_connection.get(&connection).map_or(0, |watched| watched.bytes)
    }

    /// Removes kinds of watches; whether there was one.
    fn remove(&mut self, path: &str, connection: ConnectionId, kinds: WatchKinds) -> bool {
        let Some(watchers) = self.by_path.get_mut(path) else { return false };
        let Some(held) = watchers.get_mut(&connection) else { return false };
        let removed = *held & kinds;
        self.recursive -= usize::from(removed & RECURSIVE != 0);
        *held &= !kinds;
        if *held == 0 {
            watchers.remove(&connection);
            if watchers.is_empty() {
                self.by_path.remove(path);
            }
            if let Some(watched) = self.by_connection.get_mut(&connection) {
                if watched.paths.remove(path) {
                    watched.bytes -= WATCH_BYTES + path.len();
                    self.bytes -= WATCH_BYTES + path.len();
                }
                if watched.paths.is_empty() {
                    self.by_connection.remove(&connection);
                }
            }
        }
        removed != 0
    }

    fn remove_connection(&mut self, connection: ConnectionId) {
        let watched = self.by_connection.remove(&connection).unwrap_or_default();
        self.bytes -= watched.bytes;
        for path in watched.paths {
            let Some(watchers) = self.by_path.get_mut(&path) else { continue };
            let held = watchers.remove(&connection).unwrap_or_default();
            self.recursive -= usize::from(held & RECURSIVE != 0);
            if watchers.is_empty() {
                self.by_path.remove(&path);
            }
        }
    }

    fn holds(&self, path: &str, connection: ConnectionId, kinds: WatchKinds) -> bool {
        let held = self.by_path.get(path).and_then(|watchers| watchers.get(&connection));
        held.is_some_and(|held| held & kinds != 0)
    }

    /// The connections that watch `path`, once each. Watches that fire once are removed.
    fn fire(&mut self, path: &str) -> Vec<ConnectionId> {
        let mut fired: Vec<ConnectionId> = Vec::new();
        if let Some(watchers) = self.by_path.get(path) {
            fired.extend(watchers.keys());
        }
        for connection in &fired {
            self.remove(path, *connection, STANDARD);
        }
        if self.recursive > 0 {
            let mut below = path;
            while let Some((parent, _)) = below.rsplit_once('/').filter(|_| below != "/") {
                below = if parent.is_empty() { "/" } else { parent };
                let Some(watchers) = self.by_path.get(below) else { continue };
                let recursive = watchers.iter().filter(|(_, held)| **held & RECURSIVE != 0);
                fired.extend(recursive.map(|(connection, _)| *connection));
            }
        }
        fired.sort_unstable();
        fired.dedup();
        fired
    }
}

/// How many watches there are. As in ZooKeeper, the first three are of the data table alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WatchCounts {
    pub(crate) connections: usize,
    pub(crate) paths: usize,
    pub(crate) watches: usize,
    /// In both tables.
    pub(crate) all: usize,
}

/// All watches.
#[derive(Debug)]
pub(crate) struct Watches {
    data: WatchTable,
    children: WatchTable,
    connections: HashMap<ConnectionId, Arc<Connection>>,
    /// How much memory all watches may take.
    bytes_max: usize,
}

impl Watches {
    pub(crate) fn new(bytes_max: usize) -> Watches {
        Watches {
            data: WatchTable::default(),
            children: WatchTable::default(),
            connections: HashMap::new(),
            bytes_max,
        }
    }

    pub(crate) fn watch_data(&mut self, path: &str, connection: &Arc<Connection>) {
        if self.connect(connection) {
            self.data.add(path, connection.id(), STANDARD);
            self.make_room();
        }
    }

    pub(crate) fn watch_children(&mut self, path: &str, connection: &Arc<Connection>) {
        if self.connect(connection) {
            self.children.add(path, connection.id(), STANDARD);
            self.make_room();
        }
    }

    /// Ends the connections whose watches take most, until all take no more than they may.
    fn make_room(&mut self) {
        while self.data.bytes + self.children.bytes > self.bytes_max {
            let bytes_of =
                |id: &ConnectionId| self.data.bytes_of(*id) + self.children.bytes_of(*id);
            let Some(heaviest) = self.connections.keys().copied().max_by_key(bytes_of) else {
                return;
            };
            let Some(connection) = self.connections.get(&heaviest).cloned() else { return };
            tracing::warn!(
                peer = %connection.peer,
                bytes = bytes_of(&heaviest),
                "a ZooKeeper connection has too many watches (zookeeper.watches-bytes-max), and is closed"
            );
            connection.output.cut();
            self.remove_connection(&connection);
        }
    }

    pub(crate) fn add(&mut self, path: &str, connection: &Arc<Connection>, mode: AddWatchMode) {
        if !self.connect(connection) {
            return;
        }
        match mode {
            AddWatchMode::Persistent => {
                self.data.add(path, connection.id(), PERSISTENT);
                self.children.add(path, connection.id(), PERSISTENT);
            }
            AddWatchMode::PersistentRecursive => {
                self.data.add(path, connection.id(), RECURSIVE);
            }
        }
        self.make_room();
    }

    /// Whether the connection can have watches. One that has ended cannot: its watches were removed
    /// already, or will be.
    fn connect(&mut self, connection: &Arc<Connection>) -> bool {
        let goes_on = !connection.output.has_ended();
        if goes_on {
            self.connections.entry(connection.id()).or_insert_with(|| Arc::clone(connection));
        }
        goes_on
    }

    pub(crate) fn holds(&self, path: &str, connection: &Connection, kind: WatcherType) -> bool {
        let (data, children) = match kind {
            // A persistent watch is looked for in one table only.
            WatcherType::Persistent => (PERSISTENT, 0),
            _ => kind.kinds(),
        };
        self.data.holds(path, connection.id(), data)
            || self.children.holds(path, connection.id(), children)
    }

    /// Removes watches; whether there was one.
    pub(crate) fn remove(
        &mut self,
        path: &str,
        connection: &Connection,
        kind: WatcherType,
    ) -> bool {
        let (data, children) = kind.kinds();
        let from_data = self.data.remove(path, connection.id(), data);
        self.children.remove(path, connection.id(), children) || from_data
    }

    pub(crate) fn remove_connection(&mut self, connection: &Connection) {
        self.data.remove_connection(connection.id());
        self.children.remove_connection(connection.id());
        self.connections.remove(&connection.id());
    }

    /// Sets the watches of a client that has a new connection. What it missed meanwhile it gets as
    /// events.
    pub(crate) fn restore(
        &mut self,
        tree: &ZnodeTree,
        wanted: &SetWatches,
        connection: &Arc<Connection>,
    ) {
        if !self.connect(connection) {
            return;
        }
        let since = wanted.relative_zxid;
        let missed =
            |kind, path: &str| connection.output.event(&WatchEvent { kind, path, zxid: -1 });
        for path in &wanted.data {
            match tree.get(path) {
                None => missed(WatchEventKind::Deleted, path),
                Some(znode) if znode.stat().mzxid > since => {
                    missed(WatchEventKind::DataChanged, path);
                }
                Some(_) => self.data.add(path, connection.id(), STANDARD),
            }
        }
        for path in &wanted.exists {
            match tree.get(path) {
                Some(_) => missed(WatchEventKind::Created, path),
                None => self.data.add(path, connection.id(), STANDARD),
            }
        }
        for path in &wanted.children {
            match tree.get(path) {
                None => missed(WatchEventKind::Deleted, path),
                Some(znode) if znode.stat().pzxid > since => {
                    missed(WatchEventKind::ChildrenChanged, path);
                }
                Some(_) => self.children.add(path, connection.id(), STANDARD),
            }
        }
        self.make_room();
        for path in &wanted.persistent {
            self.add(path, connection, AddWatchMode::Persistent);
        }
        for path in &wanted.recursive {
            self.add(path, connection, AddWatchMode::PersistentRecursive);
        }
    }

    /// Sends the events of a change.
    pub(crate) fn fire(&mut self, change: &TreeChange<'_>) {
        let TreeChange { kind, path, acl, parent_acl, zxid } = *change;
        let (parent, _) = split_path(path).unwrap_or_default();
        let parent = if parent.is_empty() { "/" } else { parent };
        let event = |kind, path| WatchEvent { kind, path, zxid };
        match kind {
            TreeChangeKind::Created => {
                let created = self.data.fire(path);
                self.send(&created, acl, event(WatchEventKind::Created, path));
            }
            TreeChangeKind::Deleted => {
                let deleted = self.data.fire(path);
                self.send(&deleted, acl, event(WatchEventKind::Deleted, path));
                let mut others = self.children.fire(path);
                others.retain(|connection| !deleted.contains(connection));
                self.send(&others, acl, event(WatchEventKind::Deleted, path));
            }
            TreeChangeKind::DataChanged => {
                let changed = self.data.fire(path);
                return self.send(&changed, acl, event(WatchEventKind::DataChanged, path));
            }
        }
        let changed = self.children.fire(parent);
        self.send(&changed, parent_acl, event(WatchEventKind::ChildrenChanged, parent));
    }

    /// Sends an event to those who may read the znode.
    fn send(&self, to: &[ConnectionId], acl: &Acl, event: WatchEvent<'_>) {
        for connection in to.iter().filter_map(|id| self.connections.get(id)) {
            if check_permission(acl, acl::READ, &connection.held()).is_ok() {
                connection.output.event(&event);
            }
        }
    }

    /// The sessions that watch each path.
    pub(crate) fn by_path(&self) -> BTreeMap<&str, BTreeSet<SessionId>> {
        let mut found: BTreeMap<&str, BTreeSet<SessionId>> = BTreeMap::new();
        for (path, session) in self.all() {
            found.entry(path).or_default().insert(session);
        }
        found
    }

    /// The paths that each session watches.
    pub(crate) fn by_session(&self) -> BTreeMap<SessionId, BTreeSet<&str>> {
        let mut found: BTreeMap<SessionId, BTreeSet<&str>> = BTreeMap::new();
        for (path, session) in self.all() {
            found.entry(session).or_default().insert(path);
        }
        found
    }

    /// The data watches, as ZooKeeper shows them.
    fn all(&self) -> impl Iterator<Item = (&str, SessionId)> {
        let watchers =
            self.data.by_path.iter().flat_map(|(path, by)| by.keys().map(move |id| (path, id)));
        watchers.filter_map(|(path, id)| Some((&**path, self.connections.get(id)?.session()?)))
    }

    pub(crate) fn counts(&self) -> WatchCounts {
        let count = |table: &WatchTable| table.by_path.values().map(HashMap::len).sum::<usize>();
        let watches = count(&self.data);
        WatchCounts {
            connections: self.data.by_connection.len(),
            paths: self.data.by_path.len(),
            watches,
            all: watches + count(&self.children),
        }
    }
}
