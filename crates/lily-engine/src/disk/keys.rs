//! Names of pages and states on disk: hashes of all tokens up to their end, so that conversations share the
//! pages of a common prefix.

use std::fmt;

use lily_model::PAGE_TOKENS;

use super::container::ModelHash;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Key([u8; 16]);

/// As in file names.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The keys of the full pages of these tokens, and of the state behind all of them.
pub(crate) fn keys(model: &ModelHash, tokens: &[u32]) -> (Vec<Key>, Key) {
    let mut hasher = blake3::Hasher::new();
    hasher.update(model);
    let mut pages = Vec::with_capacity(tokens.len() / PAGE_TOKENS);
    for page in tokens.chunks(PAGE_TOKENS) {
        hasher.update(&token_bytes(page));
        if page.len() == PAGE_TOKENS {
            pages.push(key(&hasher));
        }
    }
    (pages, key(&hasher))
}

fn key(hasher: &blake3::Hasher) -> Key {
    Key(hasher.finalize().as_bytes()[..16].try_into().expect("sixteen bytes"))
}

pub(crate) fn token_bytes(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|token| token.to_le_bytes()).collect()
}

/// `None` where the bytes are no whole tokens, or none.
pub(crate) fn tokens_of(bytes: &[u8]) -> Option<Vec<u32>> {
    let (tokens, rest) = bytes.as_chunks::<4>();
    (rest.is_empty() && !tokens.is_empty()).then(|| tokens.iter().map(|&token| u32::from_le_bytes(token)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_a_common_prefix_share_their_keys() {
        let tokens: Vec<u32> = (0..700).collect();
        let mut other = tokens.clone();
        other[600] = 0;
        let ((pages, state), (other_pages, other_state)) = (keys(&[1; 32], &tokens), keys(&[1; 32], &other));
        assert_eq!((pages.len(), &pages), (2, &other_pages));
        assert_ne!(state, other_state);
        other[100] = 0;
        assert_ne!(keys(&[1; 32], &other).0[1], pages[1]);
        assert_ne!(keys(&[2; 32], &tokens).0, pages);
        assert_eq!(tokens_of(&token_bytes(&tokens)), Some(tokens));
        assert_eq!((tokens_of(&[1, 2, 3]), tokens_of(&[])), (None, None));
    }
}
