//! Random numbers of which a seed decides.

/// xorshift64*
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n
    }
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
    pub fn pick<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        all.get(self.index(all.len())?)
    }
    /// A place in a list of this length.
    pub fn index(&mut self, length: usize) -> Option<usize> {
        let length = u64::try_from(length).ok().filter(|length| *length > 0)?;
        usize::try_from(self.below(length)).ok()
    }
}
