//! Tells the crate when it was built: ZooKeeper's clients read that behind its version.

use std::time::{SystemTime, UNIX_EPOCH};

fn main() {
    // Builds that have to be the same bytes set this.
    println!("cargo::rerun-if-env-changed=SOURCE_DATE_EPOCH");
    println!("cargo::rerun-if-changed=build.rs");
    let seconds = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|text| text.parse::<u64>().ok());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    println!("cargo::rustc-env=BUILT_AT_SECONDS={}", seconds.unwrap_or(now));
}
