//! Any bytes at each door of a server: nothing panics, hangs or grows. `README.md` says how to run
//! it.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "what fails here is what is looked for")]

mod frames;
mod http;
mod links;
mod moments;
mod names;
mod tokens;
mod world;
mod zookeeper;

/// A way in.
pub struct Door {
    pub name: &'static str,
    /// Lets the bytes in, and panics if something is wrong with what comes of it.
    pub run: fn(&[u8]),
    /// Inputs to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All doors.
pub const DOORS: &[Door] = &[
    Door { name: "frames", run: frames::run, seeds: frames::seeds },
    Door { name: "sasl", run: frames::run_login, seeds: frames::login_seeds },
    Door { name: "tokens", run: tokens::run, seeds: tokens::seeds },
    Door { name: "http", run: http::run, seeds: http::seeds },
    Door { name: "zookeeper", run: zookeeper::run, seeds: zookeeper::seeds },
    Door { name: "links", run: links::run_message, seeds: links::message_seeds },
    Door { name: "arena", run: links::run_arena, seeds: links::arena_seeds },
    Door { name: "names", run: names::run, seeds: names::seeds },
    Door { name: "moments", run: moments::run, seeds: moments::seeds },
];

/// The door of this name.
pub fn door(name: &str) -> Option<&'static Door> {
    DOORS.iter().find(|door| door.name == name)
}

/// Counts frames in what a server sends.
#[derive(Default)]
struct FrameCounter {
    length: Vec<u8>,
    left: usize,
    frames: usize,
}

impl FrameCounter {
    fn take(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.left == 0 {
                self.length.push(bytes[0]);
                bytes = &bytes[1..];
                if let Ok(length) = <[u8; 4]>::try_from(&self.length[..]) {
                    self.length.clear();
                    self.left = u32::from_be_bytes(length) as usize;
                    self.frames += usize::from(self.left == 0);
                }
                continue;
            }
            let count = self.left.min(bytes.len());
            bytes = &bytes[count..];
            self.left -= count;
            self.frames += usize::from(self.left == 0);
        }
    }
}

fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

#[cfg(test)]
mod tests {
    use testkit::rng::SeededRng;

    use super::*;

    /// Changes a seed a little, or joins it with another one.
    fn change(rng: &mut SeededRng, seeds: &[Vec<u8>]) -> Vec<u8> {
        let one = |rng: &mut SeededRng| seeds[rng.below(seeds.len() as u64) as usize].clone();
        let mut bytes = one(rng);
        for _ in 0..=rng.below(4) {
            let at = rng.below(bytes.len() as u64 + 1) as usize;
            match rng.below(5) {
                0 => bytes.insert(at, rng.below(256) as u8),
                1 if at < bytes.len() => drop(bytes.remove(at)),
                2 if at < bytes.len() => bytes[at] = rng.below(256) as u8,
                3 => bytes.truncate(at),
                _ => {
                    let other = one(rng);
                    let from = rng.below(other.len() as u64 + 1) as usize;
                    bytes.splice(at..at, other[from..].iter().copied());
                }
            }
        }
        bytes
    }

    fn number_in(variable: &str) -> Option<u64> {
        Some(std::env::var(variable).ok()?.parse().expect("a number"))
    }

    /// A few inputs at each door; the fuzzer tries many more. Variables ask for more of them, from
    /// another seed, at one door.
    #[test]
    fn nothing_that_comes_in_panics_or_hangs() {
        let inputs = number_in("FREEZEFRAME_FUZZ_INPUTS").unwrap_or(2_000);
        let seed = number_in("FREEZEFRAME_FUZZ_SEED").unwrap_or(11);
        let chosen = std::env::var("FREEZEFRAME_FUZZ_DOOR").ok();
        let is_chosen = |door: &&Door| chosen.as_deref().is_none_or(|chosen| chosen == door.name);
        for door in DOORS.iter().filter(is_chosen) {
            let (seeds, mut rng) = ((door.seeds)(), SeededRng::new(seed));
            seeds.iter().for_each(|seed| (door.run)(seed));
            for _ in 0..inputs {
                let input = change(&mut rng, &seeds);
                let run = std::panic::catch_unwind(|| (door.run)(&input));
                assert!(run.is_ok(), "{}: {:?}", door.name, input.escape_ascii().to_string());
            }
        }
    }
}
