//! A load of many small files like PostMark's (`M11`): 500 files of 8 to 32 KiB, then 2000
//! transactions. Each transaction reads a file or appends to one, and creates a file or removes
//! one; calls are of 4 KiB.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::Result;
use testkit::rng::SeededRng;

use super::{FileMeasurement, timed};

const FILES: u64 = 500;
const TRANSACTIONS: u64 = 2000;
const BYTES: std::ops::Range<u64> = 8 << 10..32 << 10;
const CALL_BYTES: usize = 4096;

struct PostmarkPool<'a> {
    directory: &'a Path,
    numbers: SeededRng,
    files: Vec<PathBuf>,
    made: u64,
}

impl PostmarkPool<'_> {
    fn random_length(&mut self) -> usize {
        (BYTES.start + self.numbers.below(BYTES.end - BYTES.start)) as usize
    }

    fn random_file(&mut self) -> usize {
        self.numbers.below(self.files.len() as u64) as usize
    }

    fn create(&mut self) -> Result<()> {
        let path = self.directory.join(format!("file-{}", self.made));
        self.made += 1;
        let length = self.random_length();
        write(&mut File::create_new(&path)?, length)?;
        self.files.push(path);
        Ok(())
    }

    fn transaction(&mut self) -> Result<()> {
        let nth = self.random_file();
        if self.numbers.below(2) == 0 {
            let mut file = File::open(&self.files[nth])?;
            while file.read(&mut [0; CALL_BYTES])? > 0 {}
        } else {
            let length = self.random_length() / 4;
            write(&mut OpenOptions::new().append(true).open(&self.files[nth])?, length)?;
        }
        if self.numbers.below(2) == 0 {
            return self.create();
        }
        let nth = self.random_file();
        Ok(std::fs::remove_file(self.files.swap_remove(nth))?)
    }
}

fn write(file: &mut File, length: usize) -> Result<()> {
    for _ in 0..length.div_ceil(CALL_BYTES) {
        file.write_all(&[7; CALL_BYTES])?;
    }
    Ok(())
}

/// Transactions per second.
pub(super) fn run(directory: &Path) -> Result<Vec<FileMeasurement>> {
    let mut pool =
        PostmarkPool { directory, numbers: SeededRng::new(1), files: Vec::new(), made: 0 };
    let ((), made) = timed(|| (0..FILES).try_for_each(|_| pool.create()))?;
    let ((), transacted) = timed(|| (0..TRANSACTIONS).try_for_each(|_| pool.transaction()))?;
    Ok(vec![
        FileMeasurement::rate("postmark, files made", "/s", FILES as f64 / made.as_secs_f64()),
        FileMeasurement::rate(
            "postmark, transactions",
            "/s",
            TRANSACTIONS as f64 / transacted.as_secs_f64(),
        ),
    ])
}
