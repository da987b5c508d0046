//! Awkward sources.
