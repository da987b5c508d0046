//! Dependencies and levels of a list of launches.

use std::collections::HashMap;

use super::{Access, BufferId, Launch, View};

/// Launches in program order, with the earlier launches that each must wait for.
#[derive(Clone, Debug, Default)]
pub struct CommandList {
    launches: Vec<Launch>,
    /// Per launch: indices of the launches it waits for, ascending; none that another of them already waits for.
    edges: Vec<Vec<u32>>,
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
        let implied = |one: u32| waits.iter().any(|&other| other > one && self.edges[other as usize].contains(&one));
        let edges = waits.iter().copied().filter(|&one| !implied(one)).collect();
        self.launches.push(launch);
        self.edges.push(edges);
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
