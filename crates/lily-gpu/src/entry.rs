//! Names of kernel entries, as `kernels/*.metal` spell them: a stem and its variant.

use std::collections::HashSet;
use std::fmt::Display;
use std::sync::Mutex;

/// How a matrix is stored, as far as a kernel's code depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Bits {
    Q4,
    Q8,
    /// Plain bfloat.
    B16,
}

impl Bits {
    pub fn suffix(self) -> &'static str {
        match self {
            Bits::Q4 => "q4",
            Bits::Q8 => "q8",
            Bits::B16 => "b16",
        }
    }
}

/// `stem_a`.
pub fn entry(stem: &str, a: impl Display) -> &'static str {
    intern(format!("{stem}_{a}"))
}

/// `stem_a_b`.
pub fn entry2(stem: &str, a: impl Display, b: impl Display) -> &'static str {
    intern(format!("{stem}_{a}_{b}"))
}

/// `stem_a_b_c`.
pub fn entry3(stem: &str, a: impl Display, b: impl Display, c: impl Display) -> &'static str {
    intern(format!("{stem}_{a}_{b}_{c}"))
}

/// One copy of each name for the life of the process; there are some hundred.
fn intern(name: String) -> &'static str {
    static NAMES: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let mut names = NAMES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let names = names.get_or_insert_default();
    match names.get(name.as_str()) {
        Some(name) => name,
        None => {
            let name: &'static str = name.leak();
            names.insert(name);
            name
        }
    }
}
