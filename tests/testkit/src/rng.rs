//! Random numbers that replay: SplitMix64 (Steele, Lea and Flood 2014).

/// The number that a stream adds to its state in each step.
pub const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// A number that depends on all bits of `word`.
pub fn mix(word: u64) -> u64 {
    let mut mixed = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A stream of random numbers that its seed determines.
#[derive(Clone, Debug)]
pub struct SeededRng(u64);

impl SeededRng {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> SeededRng {
        SeededRng(seed)
    }

    /// An independent stream: what one of the two draws does not change what the other draws.
    pub fn fork(&mut self) -> SeededRng {
        SeededRng(self.next_u64())
    }

    /// Any number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GAMMA);
        mix(self.0)
    }

    /// A number below `count`.
    ///
    /// # Panics
    /// `count` is zero.
    pub fn below(&mut self, count: u64) -> u64 {
        assert!(count > 0, "there is no number below zero");
        self.next_u64() % count
    }

    /// A number from `least` to `most`.
    ///
    /// # Panics
    /// `least` is greater than `most`.
    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    /// True once in `times`.
    ///
    /// # Panics
    /// `times` is zero.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// One of `choices`.
    ///
    /// # Panics
    /// There are none.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len() as u64) as usize]
    }

    /// Random bytes. No compression makes them shorter.
    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next_u64() as u8).collect()
    }
}
