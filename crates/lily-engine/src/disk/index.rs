//! What lies on disk: states by their tokens, pages by their keys, all of it within the size limit.
//!
//! A state counts only while every one of its pages is there; a page stays as long as a state refers to it.
//! The least recently used state goes first; the time of its file's last change is the time of its last use,
//! so that the order survives a restart.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::container::{self, DiskError, Kind, ModelHash};
use super::keys::{Key, keys, tokens_of};
use crate::tree::{NodeId, TokenTree};

struct StoredState {
    key: Key,
    pages: Vec<Key>,
    bytes: u64,
    used: SystemTime,
}

struct StoredPage {
    bytes: u64,
    /// States that refer to it; 0 while its first state is being written.
    states: u32,
}

pub(crate) struct Index {
    directory: PathBuf,
    pub model: ModelHash,
    tree: TokenTree<StoredState>,
    pages: HashMap<Key, StoredPage>,
    bytes: u64,
    bytes_max: u64,
    /// Held as long as the index lives: two processes cannot keep one limit.
    lock: File,
}

impl Drop for Index {
    /// Closing the file would not do: a program that this process is just starting has a copy of it, until it runs.
    fn drop(&mut self) {
        if let Err(error) = self.lock.unlock() {
            tracing::debug!(%error, "the cache directory stays locked until this process ends");
        }
    }
}

impl Index {
    /// Lists a directory, which is made if it is not there. What it cannot use, it leaves alone and reports.
    pub fn open(directory: &Path, model: ModelHash, bytes_max: u64) -> Result<Index, DiskError> {
        fs::create_dir_all(directory).map_err(DiskError::io(directory))?;
        let lock_path = directory.join("lock");
        let lock = File::create(&lock_path).map_err(DiskError::io(&lock_path))?;
        lock.try_lock().map_err(|_| DiskError::file(&lock_path, "another process uses this cache directory"))?;
        let directory = directory.to_owned();
        let mut index = Index { directory, model, tree: TokenTree::new(), pages: HashMap::new(), bytes: 0, bytes_max, lock };
        index.list()?;
        index.make_room(None);
        Ok(index)
    }

    fn list(&mut self) -> Result<(), DiskError> {
        let mut states = Vec::new();
        let mut pages = HashMap::new();
        let directory = self.directory.clone();
        for entry in fs::read_dir(&directory).map_err(DiskError::io(&directory))? {
            let path = entry.map_err(DiskError::io(&directory))?.path();
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("state") => states.push(path),
                Some("page") => _ = pages.insert(path.clone(), fs::metadata(&path).map_or(0, |metadata| metadata.len())),
                // Left behind by a process that died: the lock says that nobody is writing it.
                Some("tmp") => remove_file(&path),
                _ if path.ends_with("lock") => {}
                _ => tracing::warn!(path = %path.display(), "a foreign file in the cache directory is ignored"),
            }
        }
        for path in states {
            if let Err(error) = self.list_state(&path, &mut pages) {
                tracing::warn!(%error, "a cached state is ignored");
            }
        }
        // Pages whose state was never written, or no longer counts.
        pages.keys().filter(|path| container::read_first(path, Kind::Page, &self.model).is_ok()).for_each(|path| remove_file(path));
        Ok(())
    }

    fn list_state(&mut self, path: &Path, pages: &mut HashMap<PathBuf, u64>) -> Result<(), DiskError> {
        let bytes = container::read_first(path, Kind::State, &self.model)?;
        let tokens =
            tokens_of(&bytes).ok_or_else(|| DiskError::file(path, format!("expected tokens of 4 bytes, found {} bytes", bytes.len())))?;
        let (page_keys, key) = keys(&self.model, &tokens);
        if self.state_path(key) != path {
            return Err(DiskError::file(path, format!("expected the name {key}.state for its tokens")));
        }
        for &page in &page_keys {
            if let Some(bytes) = pages.remove(&self.page_path(page)) {
                self.add_page(page, bytes);
            }
        }
        let metadata = fs::metadata(path).map_err(DiskError::io(path))?;
        let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        if !self.add(&tokens, metadata.len(), used) {
            return Err(DiskError::file(path, "some of its pages are missing"));
        }
        Ok(())
    }

    /// Length of the longest stored prefix of `tokens` that leaves at least one token to compute.
    pub fn find(&self, tokens: &[u32]) -> usize {
        self.tree.find(tokens, tokens.len() - 1).position
    }

    pub fn contains(&self, tokens: &[u32]) -> bool {
        self.tree.find(tokens, tokens.len()).position == tokens.len()
    }

    pub fn has_page(&self, key: Key) -> bool {
        self.pages.contains_key(&key)
    }

    /// Whether a state with its pages could be kept at all.
    pub fn could_hold(&self, bytes: u64) -> bool {
        bytes <= self.bytes_max
    }

    pub fn state_path(&self, key: Key) -> PathBuf {
        self.directory.join(format!("{key}.state"))
    }

    pub fn page_path(&self, key: Key) -> PathBuf {
        self.directory.join(format!("{key}.page"))
    }

    pub fn add_page(&mut self, key: Key, bytes: u64) {
        let old = self.pages.insert(key, StoredPage { bytes, states: self.pages.get(&key).map_or(0, |page| page.states) });
        self.bytes = self.bytes + bytes - old.map_or(0, |page| page.bytes);
    }

    /// A state's file is written; older ones may have to go for it.
    pub fn add_state(&mut self, tokens: &[u32], bytes: u64) {
        if self.add(tokens, bytes, SystemTime::now()) {
            let id = self.tree.find(tokens, tokens.len()).node;
            self.make_room(id);
        } else {
            // A page went with another state while this one was under way.
            remove_file(&self.state_path(keys(&self.model, tokens).1));
        }
    }

    fn add(&mut self, tokens: &[u32], bytes: u64, used: SystemTime) -> bool {
        let (pages, key) = keys(&self.model, tokens);
        if self.contains(tokens) || !pages.iter().all(|&page| self.has_page(page)) {
            return self.contains(tokens);
        }
        for page in &pages {
            self.pages.get_mut(page).expect("it was looked up").states += 1;
        }
        self.bytes += bytes;
        self.tree.insert(tokens, StoredState { key, pages, bytes, used });
        true
    }

    /// A stored prefix was used.
    pub fn touch(&mut self, tokens: &[u32]) {
        let Some(id) = self.tree.find(tokens, tokens.len()).node else { return };
        let now = SystemTime::now();
        let state = self.tree.get_mut(id).expect("it was found");
        state.used = now;
        let path = self.directory.join(format!("{}.state", state.key));
        if let Err(error) = File::options().append(true).open(&path).and_then(|file| file.set_modified(now)) {
            tracing::debug!(%error, path = %path.display(), "the time of last use is not kept");
        }
    }

    /// A stored prefix turned out to be unusable: it goes, with the pages that only it refers to. `damaged` names
    /// a page that goes in any case.
    pub fn forget(&mut self, tokens: &[u32], damaged: Option<Key>) {
        if let Some(page) = damaged {
            let users: Vec<NodeId> = self.tree.iter().filter(|(_, saved)| saved.value.pages.contains(&page)).map(|(id, _)| id).collect();
            users.into_iter().for_each(|id| self.remove(id));
        } else if let Some(id) = self.tree.find(tokens, tokens.len()).node {
            self.remove(id);
        }
    }

    fn make_room(&mut self, newest: Option<NodeId>) {
        while self.bytes > self.bytes_max {
            let oldest = self.tree.iter().filter(|(id, _)| Some(*id) != newest).min_by_key(|(_, saved)| saved.value.used).map(|(id, _)| id);
            let Some(id) = oldest.or(newest.filter(|&id| self.tree.get(id).is_some())) else { return };
            self.remove(id);
        }
    }

    fn remove(&mut self, id: NodeId) {
        let state = self.tree.remove(id);
        remove_file(&self.state_path(state.key));
        self.bytes -= state.bytes;
        for key in state.pages {
            let page = self.pages.get_mut(&key).expect("a state's pages are there");
            page.states -= 1;
            if page.states == 0 {
                self.bytes -= page.bytes;
                self.pages.remove(&key);
                remove_file(&self.page_path(key));
            }
        }
    }

    /// Tokens of the stored prefixes that no longer one begins with.
    pub fn longest(&self) -> Vec<Vec<u32>> {
        self.tree.longest()
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn states(&self) -> usize {
        self.tree.len()
    }
}

fn remove_file(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        tracing::warn!(%error, path = %path.display(), "a cache file could not be removed");
    }
}
