//! The plug-ins that extract user times. Their modules are files of the service, and so have a
//! past.
//!
//! A topic keeps using the module that existed when its setting was made, whatever happens to the
//! file.

use bytes::Bytes;
use hlc::{Cut, Hlc};
use storage::Durability;
use user_time::{Plugin, PluginError, check_plugin_name};

use crate::blocking::block_in_place;
use crate::engine::Engine;
use crate::files::{FileError, FileKind};
use crate::user_time::{PLUGINS_DIRECTORY, plugin_path};

/// A plug-in that a topic's setting can name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginSummary {
    pub name: String,
    /// How long its module is.
    pub bytes: u64,
    /// When it was last written.
    pub written: Hlc,
}

/// Why a plug-in was not added, removed or listed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PluginFilesError {
    /// The name or the module is not valid.
    #[error(transparent)]
    Plugin(#[from] PluginError),
    /// No plug-in has that name.
    #[error("there is no plug-in of that name. plugin={0}")]
    Unknown(String),
    /// The file operation failed.
    #[error("the files of plug-ins cannot be used: {0}")]
    Files(#[from] FileError),
}

impl Engine {
    /// Adds a plug-in, or replaces it. Topics whose setting names it already keep the old module.
    ///
    /// # Errors
    /// The name or the module is not valid, or the disk fails.
    pub async fn add_plugin(&self, name: &str, module: Bytes) -> Result<(), PluginFilesError> {
        block_in_place(|| Plugin::new(name, &module).map(drop))?;
        let files = self.files();
        let _changing = self.change_lock.lock().await;
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
    pub async fn remove_plugin(&self, name: &str) -> Result<(), PluginFilesError> {
        check_plugin_name(name)?;
        // Held so that a plug-in is not removed between the check of a setting and the setting's
        // event, as of which the module is loaded.
        let _changing = self.change_lock.lock().await;
        match self.files().unlink(&plugin_path(name)).await {
            Err(FileError::NotFound(_)) => Err(PluginFilesError::Unknown(name.to_owned())),
            Err(error) => Err(error.into()),
            Ok(()) => Ok(self.files().sync().await?),
        }
    }

    /// The existing plug-ins, by name.
    ///
    /// # Errors
    /// The disk fails.
    pub fn plugins(&self) -> Result<Vec<PluginSummary>, PluginFilesError> {
        block_in_place(|| {
            let entries = match self.files().list(PLUGINS_DIRECTORY, Cut::ALL) {
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
                let view = self.files().open_inode(entry.inode)?.view_at(Cut::ALL)?;
                let (bytes, written) = (view.length(), view.modified());
                plugins.push(PluginSummary { name: name.to_owned(), bytes, written });
            }
            Ok(plugins)
        })
    }
}
