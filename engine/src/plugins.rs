//! The plug-ins that extract user times. Their modules are files of the service, and so have a
//! past.
//!
//! A topic keeps using the module that existed when its setting was made, whatever happens to the
//! file.

use bytes::Bytes;
use engine_core::blocking::block_in_place;
use engine_core::projection::PluginModules;
use engine_files::{FileError, FileKind, FileSystem};
use hlc::{Cut, Hlc};
use storage::Durability;
use user_time::{MODULE_BYTES_MAX, Plugin, PluginError, check_plugin_name};

use crate::engine::Engine;

/// The directory of plug-in modules, among the service's files.
const PLUGINS_DIRECTORY: &str = "/plugins";

/// The path of a plug-in's module.
fn plugin_path(name: &str) -> String {
    format!("{PLUGINS_DIRECTORY}/{name}.wasm")
}

/// A plug-in that a topic's setting can name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginSummary {
    pub name: String,
    /// The length of its module in bytes.
    pub bytes: u64,
    /// The stamp of its last write.
    pub written: Hlc,
}

/// The reason that a plug-in was not added, removed or listed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PluginFilesError {
    /// The name or the module is not valid.
    #[error(transparent)]
    Plugin(#[from] PluginError),
    /// No plug-in has that name.
    #[error("there is no plug-in {0}")]
    Unknown(String),
    /// The file operation failed.
    #[error("the files of plug-ins cannot be used: {0}")]
    Files(#[from] FileError),
}

/// The plug-ins that topics can name in their settings.
#[derive(Clone, Copy, Debug)]
pub struct Plugins<'a> {
    engine: &'a Engine,
}

impl Engine {
    /// The plug-ins that topics can name in their settings.
    pub fn plugins(&self) -> Plugins<'_> {
        Plugins { engine: self }
    }
}

impl Plugins<'_> {
    /// Adds a plug-in, or replaces it. Topics whose setting names it already keep the old module.
    ///
    /// # Errors
    /// The name or the module is not valid, or the disk fails.
    pub async fn add(self, name: &str, module: Bytes) -> Result<(), PluginFilesError> {
        block_in_place(|| Plugin::new(name, &module).map(drop))?;
        let files = self.engine.files();
        let _changing = self.engine.lock_changes().await;
        match files.mkdir(PLUGINS_DIRECTORY, 0o755).await {
            Ok(_) | Err(FileError::Exists(_)) => {}
            Err(error) => return Err(error.into()),
        }
        // Written under a temporary name and renamed, so that nobody finds half of it.
        let (path, unfinished) = (plugin_path(name), format!("{PLUGINS_DIRECTORY}/.{name}.new"));
        match files.unlink(&unfinished).await {
            Ok(()) | Err(FileError::NotFound(_)) => {}
            Err(error) => return Err(error.into()),
        }
        let file = files.create(&unfinished, 0o644).await?;
        file.write_at(0, module, Durability::Written).await?;
        files.rename(&unfinished, &path).await?;
        Ok(files.sync().await?)
    }

    /// Removes a plug-in: no setting can name it any more. Topics whose setting names it keep the
    /// module.
    ///
    /// # Errors
    /// There is none of that name, or the disk fails.
    pub async fn remove(self, name: &str) -> Result<(), PluginFilesError> {
        check_plugin_name(name)?;
        // Held so that a plug-in is not removed between the check of a setting and the setting's
        // event, as of which the module is loaded.
        let _changing = self.engine.lock_changes().await;
        match self.engine.files().unlink(&plugin_path(name)).await {
            Err(FileError::NotFound(_)) => Err(PluginFilesError::Unknown(name.to_owned())),
            Err(error) => Err(error.into()),
            Ok(()) => Ok(self.engine.files().sync().await?),
        }
    }

    /// The existing plug-ins, by name.
    ///
    /// # Errors
    /// The disk fails.
    pub fn list(self) -> Result<Vec<PluginSummary>, PluginFilesError> {
        block_in_place(|| {
            let entries = match self.engine.files().list(PLUGINS_DIRECTORY, Cut::ALL) {
                Err(FileError::NotFound(_)) => return Ok(Vec::new()),
                entries => entries?,
            };
            let mut plugins = Vec::new();
            for entry in entries.into_iter().filter(|entry| entry.kind == FileKind::File) {
                let name = std::str::from_utf8(&entry.name).ok();
                let name = name.and_then(|name| name.strip_suffix(".wasm"));
                let Some(name) = name.filter(|name| check_plugin_name(name).is_ok()) else {
                    continue;
                };
                let view = self.engine.files().open_inode(entry.inode)?.view_at(Cut::ALL)?;
                let (bytes, written) = (view.length(), view.modified());
                plugins.push(PluginSummary { name: name.to_owned(), bytes, written });
            }
            Ok(plugins)
        })
    }
}

/// The modules of plug-ins, as files.
pub(crate) struct FilePluginModules(pub(crate) FileSystem);

impl PluginModules for FilePluginModules {
    fn read(&self, name: &str, at: Cut) -> Result<Vec<u8>, String> {
        let path = plugin_path(name);
        let view = self.0.open_at(path.as_str(), at).map_err(|error| match error {
            FileError::NotFound(_) => format!(
                "there is no plug-in {name}: add it first, with `freezeframe plugins add {name} FILE`"
            ),
            error => format!("the plug-in {name} cannot be read: {error}"),
        })?;
        let length = view.length();
        if length > MODULE_BYTES_MAX as u64 {
            return Err(format!(
                "the plug-in {name} is too long: it has {length} bytes, and may have {MODULE_BYTES_MAX}"
            ));
        }
        let bytes = view.read(0, length as usize);
        bytes
            .map(|bytes| bytes.to_vec())
            .map_err(|error| format!("the plug-in {name} cannot be read: {error}"))
    }
}
