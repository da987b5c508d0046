//! A bar with the time left, on standard error; nothing where that is not a terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// A bar over `total` steps, named by `what`.
pub fn bar(what: &str, total: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {percent:>3} % {eta} left").expect("the template is valid");
    let bar = ProgressBar::new(total as u64).with_style(style).with_message(what.to_owned());
    bar.enable_steady_tick(std::time::Duration::from_millis(250));
    bar
}
