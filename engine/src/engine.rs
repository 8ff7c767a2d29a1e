//! The spine and its wings, opened together.

use std::ops::Deref;
use std::sync::Arc;

use engine_core::projection::EngineWings;
use engine_core::{BatchFormat, EngineCore};
use engine_files::FileSystem;
use engine_groups::Groups;
use engine_security::Security;
use engine_znodes::Znodes;
use hlc::WallClock;
use storage::OpenError;
use storage::disk::Disk;
use storage::journal::RecoverError;

use crate::options::EngineOptions;
use crate::plugins::FilePluginModules;

/// Topics, groups, files and znodes, and their past.
///
/// An engine dereferences to its [`EngineCore`], and so has all operations of the spine.
#[derive(Debug)]
pub struct Engine {
    core: Arc<EngineCore>,
    files: FileSystem,
    groups: Groups,
    znodes: Arc<Znodes>,
    security: Arc<Security>,
}

impl Engine {
    /// Opens the engine on a disk.
    ///
    /// # Errors
    /// The journal or the catalog cannot be read. Nothing was changed in that case.
    pub fn open(
        disk: Arc<dyn Disk>,
        options: EngineOptions,
        wall: Arc<dyn WallClock>,
        format: Arc<dyn BatchFormat>,
    ) -> Result<Engine, OpenError> {
        let core = Arc::new(EngineCore::open(disk, options.core, wall, format)?);
        let failed = |error: &dyn std::error::Error| {
            OpenError::Recover(RecoverError::Unusable(error.to_string()))
        };
        let files = FileSystem::of_engine(&core, options.files).map_err(|error| failed(&error))?;
        let groups =
            Groups::open(Arc::clone(&core), options.groups).map_err(|error| failed(&error))?;
        let past = Znodes::history_of(&core).map_err(|error| failed(&error))?;
        core.start(EngineWings {
            events: vec![Groups::projection()],
            readers: vec![files.projection(), Znodes::projection(&past)],
            plugins: Box::new(FilePluginModules(files.clone())),
        })?;
        let znodes = Znodes::open(Arc::clone(&core), past, options.znodes)
            .map_err(|error| failed(&error))?;
        let security =
            Security::open(Arc::clone(&core), options.security).map_err(|error| failed(&error))?;
        Ok(Engine { core, files, groups, znodes: Arc::new(znodes), security: Arc::new(security) })
    }

    pub fn core(&self) -> &Arc<EngineCore> {
        &self.core
    }

    /// Files, and their past.
    pub fn files(&self) -> &FileSystem {
        &self.files
    }

    /// Consumer groups, and their past.
    pub fn groups(&self) -> &Groups {
        &self.groups
    }

    /// Znodes and sessions.
    pub fn znodes(&self) -> &Arc<Znodes> {
        &self.znodes
    }

    /// Users, access control lists and quotas.
    pub fn security(&self) -> &Arc<Security> {
        &self.security
    }

    /// [`EngineCore::step`], and applies pending changes to the tree of znodes; returns true if
    /// there was anything.
    pub fn step(&self) -> bool {
        let stepped = self.core.step();
        self.znodes.step() || stepped
    }

    /// Completes what is in flight and closes the files.
    pub fn close(&self) {
        self.files.close();
        self.core.close();
        self.znodes.close();
    }
}

impl Deref for Engine {
    type Target = EngineCore;

    fn deref(&self) -> &EngineCore {
        &self.core
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.close();
    }
}
