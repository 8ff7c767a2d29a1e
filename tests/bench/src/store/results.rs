//! The file of results, with the machine and the parameters.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

/// Rewrites `path`.
pub(crate) fn write(path: &Path, parameters: &Value, found: &Map<String, Value>) -> Result<()> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let kernel = read("/proc/sys/kernel/osrelease");
    let mut document = json!({
        "machine": {
            "cores": std::thread::available_parallelism().map_or(0, usize::from),
            "kernel": kernel.trim(),
            "memory_kib": read("/proc/meminfo").split_whitespace().nth(1),
        },
        "experiments": found,
    });
    if let (Some(document), Some(parameters)) = (document.as_object_mut(), parameters.as_object()) {
        document.extend(parameters.clone());
    }
    let text = serde_json::to_string_pretty(&document)? + "\n";
    std::fs::write(path, text).with_context(|| format!("write {}", path.display()))
}
