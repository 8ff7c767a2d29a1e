//! Single calls, one after the other: creating files (`G21`), and appending to one (`G22`).

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;

use super::FileMeasurement;
use crate::histogram::Histogram;

const FILES: usize = 3000;
const APPENDS: usize = 100;
const APPEND_BYTES: usize = 128 << 10;

/// Measures the duration of each call.
pub(super) fn run(directory: &Path) -> Result<Vec<FileMeasurement>> {
    let mut found = Vec::new();
    let made = each(FILES, |nth| {
        File::create_new(directory.join(format!("made-{nth}")))?;
        Ok(())
    })?;
    add(&mut found, "make a file", &made);
    let bytes = vec![7; APPEND_BYTES];
    for synced in [false, true] {
        let path = directory.join(format!("appended-{synced}"));
        File::create_new(&path)?;
        let appended = each(APPENDS, |_| {
            let mut file = OpenOptions::new().append(true).open(&path)?;
            file.write_all(&bytes)?;
            if synced {
                file.sync_all()?;
            }
            Ok(())
        })?;
        let name = if synced { "append 128 KiB, fsync" } else { "append 128 KiB" };
        add(&mut found, name, &appended);
    }
    Ok(found)
}

fn each(times: usize, mut call: impl FnMut(usize) -> Result<()>) -> Result<Histogram> {
    let mut histogram = Histogram::new();
    for nth in 0..times {
        let begun = Instant::now();
        call(nth)?;
        histogram.record(begun.elapsed());
    }
    Ok(histogram)
}

fn add(found: &mut Vec<FileMeasurement>, name: &str, histogram: &Histogram) {
    for (which, percent) in [("p50", 50.0), ("p99", 99.0)] {
        found
            .push(FileMeasurement::time(format!("{name}, {which}"), histogram.percentile(percent)));
    }
}
