//! Dependencies and levels of a list of launches.

use std::collections::HashMap;

use super::{Access, BufferId, Launch, View};

/// Launches in program order, with the earlier launches that each must wait for.
#[derive(Clone, Debug, Default)]
pub struct CommandList {
    launches: Vec<Launch>,
    /// Per launch: indices of the launches it waits for, ascending; none that another of them waits for already, be it
    /// through others. A launch with one edge may start while that one ends, so each edge too many costs time.
    edges: Vec<Vec<u32>>,
    /// Per launch: all earlier launches that are done before it starts, a bit each.
    ancestors: Vec<Vec<u64>>,
    /// Per launch.
    levels: Vec<u32>,
    history: HashMap<BufferId, Vec<Touched>>,
    /// Every launch waits for the one before: the alternative to true dependencies.
    serial: bool,
}

/// A view of one buffer with the launches that last touched it.
#[derive(Clone, Debug)]
struct Touched {
    view: View,
    writer: Option<u32>,
    /// Readers since the writer.
    readers: Vec<u32>,
}

/// Counts of a list, for `lily bench --plan`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub launches: usize,
    pub levels: usize,
}

impl CommandList {
    pub fn new(serial: bool) -> Self {
        CommandList { serial, ..CommandList::default() }
    }

    /// Forgets the launches, keeps the room.
    pub fn clear(&mut self) {
        self.launches.clear();
        self.edges.clear();
        self.ancestors.clear();
        self.levels.clear();
        self.history.clear();
    }

    /// Appends a launch. An empty grid launches nothing and is left out.
    pub fn push(&mut self, launch: Launch) {
        if launch.grid.contains(&0) {
            return;
        }
        let index = self.launches.len() as u32;
        let mut waits = Vec::new();
        for (view, access) in &launch.bindings {
            self.touch(view, *access, index, &mut waits);
        }
        if self.serial && index > 0 {
            waits.push(index - 1);
        }
        waits.sort_unstable();
        waits.dedup();
        let level = waits.iter().map(|&wait| self.levels[wait as usize] + 1).max().unwrap_or(0);
        let mut ancestors = vec![0; self.launches.len().div_ceil(64)];
        let mut edges = Vec::new();
        for &wait in waits.iter().rev() {
            let (word, bit) = (wait as usize / 64, 1u64 << (wait % 64));
            if ancestors[word] & bit != 0 {
                continue;
            }
            edges.push(wait);
            ancestors[word] |= bit;
            ancestors.iter_mut().zip(&self.ancestors[wait as usize]).for_each(|(mine, its)| *mine |= its);
        }
        edges.reverse();
        self.launches.push(launch);
        self.edges.push(edges);
        self.ancestors.push(ancestors);
        self.levels.push(level);
    }

    pub fn launches(&self) -> &[Launch] {
        &self.launches
    }

    /// What launch `index` waits for.
    pub fn edges(&self, index: usize) -> &[u32] {
        &self.edges[index]
    }

    /// The level of launch `index`: all it waits for is on lower ones.
    pub fn level(&self, index: usize) -> u32 {
        self.levels[index]
    }

    /// Indices of the launches, level by level; in program order within one.
    pub fn by_level(&self) -> Vec<Vec<usize>> {
        let mut by_level = vec![Vec::new(); self.plan().levels];
        for (index, &level) in self.levels.iter().enumerate() {
            by_level[level as usize].push(index);
        }
        by_level
    }

    pub fn plan(&self) -> Plan {
        Plan { launches: self.launches.len(), levels: self.levels.iter().max().map_or(0, |&level| level as usize + 1) }
    }

    /// Records that launch `index` touches `view`; adds what it must wait for.
    fn touch(&mut self, view: &View, access: Access, index: u32, waits: &mut Vec<u32>) {
        let touched = self.history.entry(view.buffer).or_default();
        for past in touched.iter_mut().filter(|past| past.view.overlaps(view)) {
            waits.extend(past.writer.filter(|&writer| writer != index));
            match access {
                Access::Read => past.readers.push(index),
                Access::Write => waits.extend(past.readers.iter().copied().filter(|&reader| reader != index)),
            }
        }
        match access {
            Access::Write => {
                let covered =
                    |past: &Touched| view.offset <= past.view.offset && past.view.offset + past.view.bytes <= view.offset + view.bytes;
                touched.retain(|past| !covered(past));
                touched.push(Touched { view: *view, writer: Some(index), readers: Vec::new() });
            }
            Access::Read => {
                let known = touched.iter().any(|past| past.view == *view);
                if !known {
                    touched.push(Touched { view: *view, writer: None, readers: vec![index] });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(bindings: Vec<(View, Access)>) -> Launch {
        Launch { kernel: "any", stage: "any", bindings, args: Vec::new(), grid: [1; 3], threads: 32 }
    }

    /// Launches that touch a few overlapping views of two buffers, at random.
    fn random_list(seed: u64) -> CommandList {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut below = |limit: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % limit
        };
        let mut list = CommandList::new(false);
        for _ in 0..100 {
            let bindings = (0..1 + below(3)).map(|_| {
                let view = View { buffer: BufferId(below(2) as u32), offset: 16 * below(12) as usize, bytes: 16 * (1 + below(3)) as usize };
                (view, if below(3) == 0 { Access::Write } else { Access::Read })
            });
            list.push(launch(bindings.collect()));
        }
        list
    }

    /// Whether `to` is done before `from` starts, along edges.
    fn reaches(list: &CommandList, from: usize, to: usize) -> bool {
        list.edges(from).iter().any(|&edge| edge as usize == to || (edge as usize > to && reaches(list, edge as usize, to)))
    }

    #[test]
    fn edges_order_every_conflict_and_none_is_implied_by_others() {
        let conflict = |a: &Launch, b: &Launch| {
            let pairs = a.bindings.iter().flat_map(|one| b.bindings.iter().map(move |other| (one, other)));
            pairs.into_iter().any(|((a, how_a), (b, how_b))| a.overlaps(b) && [how_a, how_b].contains(&&Access::Write))
        };
        for seed in 0..20 {
            let list = random_list(seed);
            for later in 0..list.launches().len() {
                for earlier in (0..later).filter(|&earlier| conflict(&list.launches()[earlier], &list.launches()[later])) {
                    assert!(reaches(&list, later, earlier), "seed {seed}: {later} conflicts with {earlier}");
                    assert!(list.level(later) > list.level(earlier), "seed {seed}: levels of {later} and {earlier}");
                }
                for &edge in list.edges(later) {
                    let others = list.edges(later).iter().filter(|&&other| other > edge);
                    let implied = others.into_iter().any(|&other| reaches(&list, other as usize, edge as usize));
                    assert!(!implied, "seed {seed}: {later} waits for {edge} already");
                }
            }
        }
    }
}
