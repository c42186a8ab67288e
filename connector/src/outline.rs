//! A transcript's outline: of every message where its row is and what digest it has, never its
//! text. Two outlines tell which messages the plane has already.
use crate::limits::LINE_BYTES_MAX;
use sha2::{Digest, Sha256};
use std::collections::HashMap;

const CHAIN_START: u64 = 1;
/// So many of the last positions are remembered exactly, of those before ever fewer.
const EXACT: u64 = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    pub offset: u64,
    pub len: u32,
    pub digest: u64,
}

impl Entry {
    /// Only the beginning of such a row is ever looked at.
    pub fn is_oversize(&self) -> bool {
        self.len as usize > LINE_BYTES_MAX
    }
}

#[derive(Debug, Default, Clone)]
pub struct Outline {
    entries: Vec<Entry>,
    by_id: HashMap<u64, u32>,
}

impl Outline {
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn push(&mut self, entry: Entry) -> usize {
        self.entries.push(entry);
        self.entries.len() - 1
    }

    pub fn replace(&mut self, index: usize, entry: Entry) {
        if let Some(old) = self.entries.get_mut(index) {
            *old = entry;
        }
    }

    /// A message with an id: of those with the same one the last counts, where the first was.
    pub fn put(&mut self, id: &str, entry: Entry) -> usize {
        let id = short_hash(id.as_bytes());
        if let Some(&index) = self.by_id.get(&id) {
            self.entries[index as usize] = entry;
            return index as usize;
        }
        let index = self.push(entry);
        self.by_id.insert(id, u32::try_from(index).unwrap_or(u32::MAX));
        index
    }

    pub fn index_of(&self, id: &str) -> Option<usize> {
        self.by_id.get(&short_hash(id.as_bytes())).map(|index| *index as usize)
    }

    /// Takes back all messages from `index` on.
    pub fn truncate(&mut self, index: usize) {
        self.entries.truncate(index);
        self.by_id.retain(|_, at| (*at as usize) < index);
    }

    pub fn checkpoints(&self, count: usize) -> Vec<(u64, u64)> {
        let count = count as u64;
        let mut positions: Vec<u64> = (count.saturating_sub(EXACT)..=count).collect();
        let mut back = EXACT * 2;
        while back < count {
            positions.push(count - back);
            back *= 2;
        }
        positions.sort_unstable();
        let mut wanted = positions.into_iter().peekable();
        let mut checkpoints = Vec::new();
        let mut chain = CHAIN_START;
        for (position, entry) in (0_u64..).zip(self.entries.iter().map(Some).chain([None])) {
            if wanted.next_if_eq(&position).is_some() {
                checkpoints.push((position, chain));
            }
            match entry {
                Some(entry) if position < count => chain = link(chain, entry.digest),
                _ => break,
            }
        }
        checkpoints
    }

    /// The largest of the positions up to which this outline is as the other one was.
    pub fn common(&self, checkpoints: &[(u64, u64)]) -> usize {
        let mut common = 0;
        let mut chain = CHAIN_START;
        let mut wanted = checkpoints.iter().peekable();
        for (position, entry) in (0_u64..).zip(self.entries.iter().map(Some).chain([None])) {
            while let Some((_, expected)) = wanted.next_if(|(at, _)| *at == position) {
                if *expected == chain {
                    common = usize::try_from(position).unwrap_or(usize::MAX);
                }
            }
            match entry {
                Some(entry) if wanted.peek().is_some() => chain = link(chain, entry.digest),
                _ => break,
            }
        }
        common
    }
}

fn link(chain: u64, digest: u64) -> u64 {
    (chain ^ digest).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_add(digest)
}

pub fn digest(row: &[u8]) -> u64 {
    first_bytes(&Sha256::digest(row))
}

pub fn first_bytes(digest: &[u8]) -> u64 {
    u64::from_le_bytes(digest[..8].try_into().expect("a digest has more than eight bytes"))
}

/// Not kept anywhere, so that it may be any hash.
fn short_hash(bytes: &[u8]) -> u64 {
    use std::hash::{DefaultHasher, Hasher};
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outline(digests: impl IntoIterator<Item = u64>) -> Outline {
        let mut outline = Outline::default();
        for digest in digests {
            outline.push(Entry { offset: 0, len: 1, digest });
        }
        outline
    }

    #[test]
    fn what_only_grew_is_common_to_its_end() {
        for count in [0, 1, 31, 32, 33, 100, 1_000] {
            let checkpoints = outline(0..count).checkpoints(usize::try_from(count).unwrap());
            assert!(checkpoints.len() < 50);
            assert_eq!(outline(0..count + 5).common(&checkpoints) as u64, count);
            assert_eq!(outline(0..count).common(&checkpoints) as u64, count);
        }
    }

    #[test]
    fn a_change_near_the_end_is_found_exactly_and_one_before_by_less() {
        let checkpoints = outline(0..1_000).checkpoints(1_000);
        let changed = |at: u64| outline((0..1_000).map(|n| if n == at { 7_777 } else { n }));
        assert_eq!(changed(999).common(&checkpoints), 999);
        assert_eq!(changed(970).common(&checkpoints), 970);
        assert_eq!(changed(900).common(&checkpoints), 872);
        assert_eq!(changed(0).common(&checkpoints), 0);
    }

    #[test]
    fn a_shorter_outline_is_common_as_far_as_it_goes() {
        let checkpoints = outline(0..100).checkpoints(100);
        assert_eq!(outline(0..90).common(&checkpoints), 90);
        assert_eq!(outline([]).common(&checkpoints), 0);
    }

    #[test]
    fn of_one_id_the_last_counts_where_the_first_was() {
        let mut outline = Outline::default();
        let entry = |digest| Entry { offset: 0, len: 1, digest };
        outline.put("a", entry(1));
        outline.put("b", entry(2));
        assert_eq!(outline.put("a", entry(3)), 0);
        assert_eq!(outline.entries(), [entry(3), entry(2)]);
        outline.truncate(1);
        assert_eq!((outline.put("b", entry(4)), outline.len()), (1, 2));
    }
}
