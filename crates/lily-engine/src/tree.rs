//! A tree over token ids whose nodes are the saved prefixes: each holds a value and the tokens between its
//! nearest saved ancestor and itself.
//!
//! Invariant: among the children of one node, no edge is the beginning of another (the longer one would be
//! its descendant). So at most one child continues a given prompt all the way.

use std::collections::BTreeMap;

/// Ids are never used twice: an id outlives its node harmlessly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeId(u64);

const ROOT: NodeId = NodeId(0);

struct Node<T> {
    parent: NodeId,
    children: Vec<NodeId>,
    /// Tokens from the parent's position to this one's; empty at the root only.
    edge: Vec<u32>,
    /// Length of the prefix that this node stands for.
    position: usize,
    /// `None` at the root only.
    value: Option<T>,
}

/// A saved prefix.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Saved<'a, T> {
    pub value: &'a T,
    /// Tokens that would have to be computed again without it.
    pub gap: usize,
    /// Whether a longer prefix begins with it.
    pub inner: bool,
}

impl<T> Node<T> {
    fn saved(&self) -> Option<Saved<'_, T>> {
        Some(Saved { value: self.value.as_ref()?, gap: self.edge.len(), inner: !self.children.is_empty() })
    }
}

pub(crate) struct TokenTree<T> {
    nodes: BTreeMap<NodeId, Node<T>>,
    next: u64,
}

/// What a prompt has in common with the saved prefixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// The deepest saved prefix of the prompt within the limit, and its length.
    pub node: Option<NodeId>,
    pub position: usize,
    /// Tokens that the prompt shares with some saved sequence, saved there or not.
    pub common: usize,
}

impl<T> TokenTree<T> {
    pub fn new() -> Self {
        let root = Node { parent: ROOT, children: Vec::new(), edge: Vec::new(), position: 0, value: None };
        TokenTree { nodes: BTreeMap::from([(ROOT, root)]), next: 1 }
    }

    pub fn len(&self) -> usize {
        self.nodes.len() - 1
    }

    /// The deepest saved prefix of `tokens` that is at most `limit` long.
    pub fn find(&self, tokens: &[u32], limit: usize) -> Found {
        let mut found = Found { node: None, position: 0, common: 0 };
        let mut node = &self.nodes[&ROOT];
        loop {
            let rest = &tokens[node.position..];
            let shared = |id: &NodeId| common_prefix(&self.nodes[id].edge, rest);
            let Some((id, length)) = node.children.iter().map(|id| (*id, shared(id))).max_by_key(|&(_, length)| length) else {
                return found;
            };
            found.common = node.position + length;
            node = &self.nodes[&id];
            if length < node.edge.len() {
                return found;
            }
            if node.position <= limit {
                (found.node, found.position) = (Some(id), node.position);
            }
        }
    }

    /// The saved prefixes that no longer one begins with.
    pub fn longest(&self) -> Vec<Vec<u32>> {
        let leaves = self.nodes.values().filter(|node| node.children.is_empty() && node.position > 0);
        let tokens = |leaf: &Node<T>| {
            let mut edges = Vec::new();
            let mut node = leaf;
            while node.position > 0 {
                edges.push(&node.edge[..]);
                node = &self.nodes[&node.parent];
            }
            edges.reverse();
            edges.concat()
        };
        leaves.map(tokens).collect()
    }

    /// Saves a prefix that is not saved yet.
    pub fn insert(&mut self, tokens: &[u32], value: T) -> NodeId {
        let above = self.find(tokens, tokens.len());
        assert!(above.position < tokens.len(), "prefix of {} tokens is saved already", tokens.len());
        let parent = above.node.unwrap_or(ROOT);
        let edge = tokens[above.position..].to_vec();
        let id = NodeId(self.next);
        self.next += 1;

        let siblings = std::mem::take(&mut self.node_mut(parent).children);
        let (below, beside): (Vec<_>, Vec<_>) = siblings.into_iter().partition(|child| self.nodes[child].edge.starts_with(&edge));
        for child in &below {
            let child = self.node_mut(*child);
            child.parent = id;
            child.edge.drain(..edge.len());
        }
        let parent_node = self.node_mut(parent);
        parent_node.children = beside;
        parent_node.children.push(id);
        self.nodes.insert(id, Node { parent, children: below, edge, position: tokens.len(), value: Some(value) });
        id
    }

    /// Forgets a prefix; what hangs below it moves up.
    pub fn remove(&mut self, id: NodeId) -> T {
        assert_ne!(id, ROOT);
        let node = self.nodes.remove(&id).expect("a saved prefix");
        for child in &node.children {
            let child = self.node_mut(*child);
            child.parent = node.parent;
            child.edge.splice(..0, node.edge.iter().copied());
        }
        let siblings = &mut self.node_mut(node.parent).children;
        siblings.retain(|&child| child != id);
        siblings.extend(node.children);
        node.value.expect("only the root has no value")
    }

    pub fn get(&self, id: NodeId) -> Option<Saved<'_, T>> {
        self.nodes.get(&id)?.saved()
    }

    pub fn get_mut(&mut self, id: NodeId) -> Option<&mut T> {
        self.nodes.get_mut(&id)?.value.as_mut()
    }

    pub fn iter(&self) -> impl Iterator<Item = (NodeId, Saved<'_, T>)> {
        self.nodes.iter().filter_map(|(id, node)| Some((*id, node.saved()?)))
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node<T> {
        self.nodes.get_mut(&id).expect("ids inside the tree are valid")
    }
}

/// Length of the common beginning of two token sequences.
pub(crate) fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(tree: &TokenTree<&'static str>, tokens: &[u32], limit: usize) -> (Option<&'static str>, usize, usize) {
        let found = tree.find(tokens, limit);
        (found.node.map(|id| *tree.get(id).unwrap().value), found.position, found.common)
    }

    #[test]
    fn the_deepest_saved_prefix_within_the_limit() {
        let mut tree = TokenTree::new();
        tree.insert(&[1, 2, 3, 4, 5], "five");
        tree.insert(&[1, 2, 3], "three");
        tree.insert(&[1, 2, 9], "other");
        assert_eq!(found(&tree, &[1, 2, 3, 4, 5, 6], 6), (Some("five"), 5, 5));
        assert_eq!(found(&tree, &[1, 2, 3, 4, 5], 4), (Some("three"), 3, 5));
        assert_eq!(found(&tree, &[1, 2, 3, 4, 7], 5), (Some("three"), 3, 4));
        assert_eq!(found(&tree, &[1, 2, 8], 3), (None, 0, 2));
        assert_eq!(found(&tree, &[7], 1), (None, 0, 0));
    }

    #[test]
    fn removing_an_inner_prefix_keeps_those_below() {
        let mut tree = TokenTree::new();
        let two = tree.insert(&[1, 2], "two");
        tree.insert(&[1, 2, 3, 4], "four");
        tree.insert(&[1, 2, 5], "branch");
        assert_eq!(tree.remove(two), "two");
        assert_eq!(found(&tree, &[1, 2, 3, 4, 9], 5), (Some("four"), 4, 4));
        assert_eq!(found(&tree, &[1, 2, 5], 3), (Some("branch"), 3, 3));
        assert_eq!(tree.len(), 2);
        assert!(tree.iter().all(|(_, saved)| !saved.inner && (saved.gap == 4 || saved.gap == 3)));
    }

    /// Random prefixes over two tokens, so that edges split and join often, against a plain list.
    #[test]
    fn agrees_with_a_list_of_prefixes() {
        let mut state = 1u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        let mut tree = TokenTree::new();
        let mut list: Vec<(Vec<u32>, NodeId)> = Vec::new();
        for _ in 0..5000 {
            let tokens: Vec<u32> = (0..1 + random(9)).map(|_| random(2) as u32).collect();
            let saved = list.iter().position(|entry| entry.0 == tokens);
            match (saved, random(2)) {
                (None, 0) => list.push((tokens.clone(), tree.insert(&tokens, tokens.clone()))),
                (Some(at), 1) => assert_eq!(tree.remove(list.swap_remove(at).1), tokens),
                _ => {}
            }
            let limit = random(10) as usize;
            let best = list.iter().filter(|entry| entry.0.len() <= limit && tokens.starts_with(&entry.0)).max_by_key(|entry| entry.0.len());
            let common = list.iter().map(|entry| common_prefix(&entry.0, &tokens)).max().unwrap_or(0);
            let expected = Found { node: best.map(|entry| entry.1), position: best.map_or(0, |entry| entry.0.len()), common };
            assert_eq!(tree.find(&tokens, limit), expected);
            assert_eq!(tree.len(), list.len());
        }
    }
}
