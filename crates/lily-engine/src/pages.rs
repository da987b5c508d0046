//! The page pool: which KV pages are free, and how many hold each of the others.
//!
//! Invariants. A page has at most one writer: the sequence that took it from the pool. Everyone else (cache
//! entries, sequences that resumed from one) holds it for reading, and reads only positions that were
//! written before they took hold of it; so the writer may go on appending behind those positions. Who wants
//! to append to a page that it did not take itself must be its only holder, or copy it.

use lily_model::Page;

pub(crate) struct PagePool {
    /// Holders of each page.
    holders: Vec<u32>,
    free: Vec<Page>,
}

impl PagePool {
    pub fn new(pages: usize) -> Self {
        // The lowest page is on top, so that a lightly used device touches little memory.
        PagePool { holders: vec![0; pages], free: (0..pages as u32).rev().map(Page).collect() }
    }

    /// A page of one's own, for writing.
    pub fn take(&mut self) -> Option<Page> {
        let page = self.free.pop()?;
        self.holders[page.0 as usize] = 1;
        Some(page)
    }

    /// One more holder of a page that is held.
    pub fn hold(&mut self, page: Page) {
        assert!(self.holders(page) > 0, "page {} is free", page.0);
        self.holders[page.0 as usize] += 1;
    }

    /// One holder less; the last one frees the page.
    pub fn release(&mut self, page: Page) {
        assert!(self.holders(page) > 0, "page {} is free", page.0);
        self.holders[page.0 as usize] -= 1;
        if self.holders(page) == 0 {
            self.free.push(page);
        }
    }

    pub fn holders(&self, page: Page) -> u32 {
        self.holders[page.0 as usize]
    }

    pub fn free(&self) -> usize {
        self.free.len()
    }

    pub fn total(&self) -> usize {
        self.holders.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_holder_frees_a_page() {
        let mut pool = PagePool::new(2);
        let page = pool.take().unwrap();
        assert_eq!(page, Page(0));
        pool.hold(page);
        pool.release(page);
        assert_eq!((pool.holders(page), pool.free()), (1, 1));
        pool.release(page);
        assert_eq!((pool.holders(page), pool.free()), (0, 2));
    }

    #[test]
    fn an_empty_pool_gives_nothing() {
        let mut pool = PagePool::new(1);
        assert!(pool.take().is_some());
        assert!(pool.take().is_none());
    }

    #[test]
    #[should_panic(expected = "page 0 is free")]
    fn releasing_twice_is_a_bug() {
        let mut pool = PagePool::new(1);
        let page = pool.take().unwrap();
        pool.release(page);
        pool.release(page);
    }
}
