//! One text out of a kernel file and all that it includes.

use std::collections::HashSet;

use super::{Place, Read};

/// A run of whole lines of one file, without comments, includes and what only a compiler for Metal wants to see.
#[derive(Debug)]
pub struct Segment {
    pub place: Place,
    pub text: String,
}

/// Reads `file` and what it includes by `#include "path"`, relative to the kernels' folder, each file once. The
/// dialect's headers are left out: every target brings its own.
pub fn segments(file: &str, read: Read) -> Result<Vec<Segment>, String> {
    let mut segments = Vec::new();
    collect(file, None, read, &mut HashSet::new(), &mut segments)?;
    Ok(segments)
}

fn collect(file: &str, from: Option<Place>, read: Read, seen: &mut HashSet<String>, segments: &mut Vec<Segment>) -> Result<(), String> {
    if !seen.insert(file.to_owned()) {
        return Ok(());
    }
    let missing = || match &from {
        Some(place) => place.fault(&format!("there is no `{file}` in the kernels' folder")),
        None => format!("{file}: there is no such file in the kernels' folder"),
    };
    let text = without_comments(&read(file).ok_or_else(missing)?);
    let mut segment = Segment { place: Place::new(file, 1), text: String::new() };
    for (index, line) in text.lines().enumerate() {
        let place = Place::new(file, index + 1);
        match directive(line, &place)? {
            Line::Code => segment.text.push_str(line),
            Line::Dropped => {}
            Line::Include(path) => {
                let next = Segment { place: Place::new(file, index + 2), text: String::new() };
                segments.push(std::mem::replace(&mut segment, next));
                collect(path, Some(place), read, seen, segments)?;
                continue;
            }
        }
        segment.text.push('\n');
    }
    segments.push(segment);
    Ok(())
}

enum Line<'a> {
    Code,
    /// Means nothing outside of Metal.
    Dropped,
    Include(&'a str),
}

fn directive<'a>(line: &'a str, place: &Place) -> Result<Line<'a>, String> {
    let line = line.trim();
    if line.starts_with("using namespace metal") {
        return Ok(Line::Dropped);
    }
    let Some(directive) = line.strip_prefix('#').map(str::trim) else { return Ok(Line::Code) };
    if let Some(target) = directive.strip_prefix("include").map(str::trim) {
        if target.starts_with('<') {
            return Ok(Line::Dropped);
        }
        let path = target.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        let path = path.ok_or_else(|| place.fault("expected `#include \"path\"` or `#include <name>`"))?;
        return Ok(if path.starts_with("dialect/") { Line::Dropped } else { Line::Include(path) });
    }
    if directive == "pragma once" {
        return Ok(Line::Dropped);
    }
    if directive.starts_with("pragma") {
        return Ok(Line::Code);
    }
    Err(place.fault(&format!("`#{directive}` is not of the kernel language; macros and conditions live in dialect/ alone")))
}

/// A text of the dialect's folder with its quoted includes read in place, each once; nothing else changes.
pub fn dialect(file: &str, read: Read) -> Result<String, String> {
    let mut text = String::new();
    raw(file, read, &mut HashSet::new(), &mut text)?;
    Ok(text)
}

fn raw(file: &str, read: Read, seen: &mut HashSet<String>, out: &mut String) -> Result<(), String> {
    if !seen.insert(file.to_owned()) {
        return Ok(());
    }
    let text = read(file).ok_or_else(|| format!("{file}: there is no such file in the kernels' folder"))?;
    out.push_str(&format!("#line 1 \"{file}\"\n"));
    for (index, line) in text.lines().enumerate() {
        let target = line.trim().strip_prefix("#include").map(str::trim);
        match target.and_then(|rest| rest.strip_prefix('"')).and_then(|rest| rest.strip_suffix('"')) {
            Some(path) => {
                raw(path, read, seen, out)?;
                out.push_str(&format!("#line {} \"{file}\"\n", index + 2));
            }
            None if line.trim() == "#pragma once" => out.push('\n'),
            None => {
                out.push_str(line);
                out.push('\n');
            }
        }
    }
    Ok(())
}

/// The text with every comment a space; line ends stay.
fn without_comments(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let end = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if let Some(inside) = rest.strip_prefix("/*") {
            inside.find("*/").map_or(rest.len(), |end| end + 4)
        } else {
            let mut chars = rest.chars();
            plain.extend(chars.next());
            rest = chars.as_str();
            continue;
        };
        plain.push(' ');
        plain.extend(rest[..end].chars().filter(|&c| c == '\n'));
        rest = &rest[end..];
    }
    // A comment's space at the end of a line would be trailing white space of the emitted text.
    plain.lines().flat_map(|line| [line.trim_end(), "\n"]).collect()
}
