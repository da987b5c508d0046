//! One kernel as its source has it: template parameters, signature, threadgroup arrays, body.

use super::token::{Token, matching, plain, split};
use super::{Kind, POSITIONS, Parameter, Place, ThreadgroupArray};

#[derive(Clone, Debug)]
pub struct Definition {
    pub name: String,
    pub place: Place,
    /// Type (`uint` or `bool`) and name of each template parameter.
    pub template: Vec<(String, String)>,
    pub parameters: Vec<Parameter>,
    /// Between the braces of the body.
    pub body: Vec<Token>,
    pub arrays: Vec<Declared>,
    /// See [`super::Kernel`].
    pub threadgroup_kib: u32,
}

/// A threadgroup array with the body tokens that declare it, the semicolon included.
#[derive(Clone, Debug)]
pub struct Declared {
    pub array: ThreadgroupArray,
    pub start: usize,
    pub end: usize,
}

impl Definition {
    /// Reads the kernel at `at`: at `kernel`, or at `template` where `template` is the index of its `>`. Also gives the
    /// index of the token after the body.
    pub fn read(tokens: &[Token], at: usize, template: Option<usize>) -> Result<(Definition, usize), String> {
        let start = template.map_or(at, |close| close + 1);
        let place = tokens[start].place.clone();
        let text = |offset: usize| tokens.get(start + offset).map_or("", |token| token.text.as_str());
        if text(1) != "void" || text(3) != "(" {
            return Err(place.fault("expected `kernel void NAME(`"));
        }
        let name = text(2).to_owned();
        let close = matching(tokens, start + 3)?;
        let parameters = split(&tokens[start + 4..close]).into_iter().map(parameter).collect::<Result<Vec<_>, _>>()?;
        indices(&parameters).map_err(|what| place.fault(&format!("kernel `{name}`: {what}")))?;
        if !tokens.get(close + 1).is_some_and(|next| next.is("{")) {
            return Err(tokens[close].place.fault("expected the kernel's body after its parameters"));
        }
        let end = matching(tokens, close + 1)?;
        let body = tokens[close + 2..end].to_vec();
        let template = match template {
            Some(close) => template_parameters(&tokens[at + 2..close])?,
            None => Vec::new(),
        };
        let arrays = threadgroup_arrays(&body)?;
        let threadgroup_kib = threadgroup_kib(&body)?;
        Ok((Definition { name, place, template, parameters, body, arrays, threadgroup_kib }, end + 1))
    }

    /// The line on which the body starts.
    pub fn body_place(&self) -> Place {
        let Some(first) = self.body.first() else { return self.place.clone() };
        Place { file: first.place.file.clone(), line: first.place.line - first.space.matches('\n').count() }
    }
}

fn template_parameters(tokens: &[Token]) -> Result<Vec<(String, String)>, String> {
    let read = |part: &[Token]| match part {
        [ty, name] if ty.is("uint") || ty.is("bool") => Ok((ty.text.clone(), name.text.clone())),
        _ => Err(part[0].place.fault(&format!("template parameter `{}`: expected `uint NAME` or `bool NAME`", plain(part)))),
    };
    split(tokens).into_iter().map(read).collect()
}

fn parameter(tokens: &[Token]) -> Result<Parameter, String> {
    let fault = |what: &str| Err(tokens[0].place.fault(&format!("parameter `{}`: {what}", plain(tokens))));
    let Some(open) = tokens.iter().position(|token| token.is("[[")) else {
        return fault("expected an attribute in [[ ]]");
    };
    if open < 2 {
        return fault("expected `TYPE NAME [[ATTRIBUTE]]`");
    }
    let attribute = tokens.get(open + 1).map_or("", |token| token.text.as_str());
    let index = tokens.get(open + 3).and_then(|token| token.text.parse::<usize>().ok());
    let has = |word: &str| tokens[..open].iter().any(|token| token.is(word));
    let kind = match (attribute, index) {
        ("buffer", Some(index)) if has("constant") && has("&") => Kind::Args { index },
        ("buffer", Some(index)) if has("device") && has("*") => Kind::Buffer { index, writable: !has("const") },
        ("buffer", _) => return fault("expected `device T *`, `device const T *` or `constant T &` with [[buffer(n)]]"),
        ("threadgroup", _) => return fault("threadgroup arrays are declared in the body"),
        (word, _) => match POSITIONS.iter().find(|position| **position == word) {
            Some(position) => Kind::Builtin(position),
            None => return fault(&format!("`{word}` is not one of buffer(n), {}", POSITIONS.join(", "))),
        },
    };
    Ok(Parameter { kind, name: tokens[open - 1].text.clone(), ty: plain(&tokens[..open - 1]) })
}

/// Buffer indices count from 0 without gaps, the argument struct, of which there is at most one, last.
fn indices(parameters: &[Parameter]) -> Result<(), String> {
    let mut buffers: Vec<usize> = Vec::new();
    let mut args: Vec<usize> = Vec::new();
    for parameter in parameters {
        match parameter.kind {
            Kind::Buffer { index, .. } => buffers.push(index),
            Kind::Args { index } => args.push(index),
            Kind::Builtin(_) => {}
        }
    }
    buffers.sort_unstable();
    if buffers.iter().enumerate().any(|(expected, &index)| expected != index) {
        return Err(format!("expected buffers 0 to {}, found {buffers:?}", buffers.len().saturating_sub(1)));
    }
    match args[..] {
        [] => Ok(()),
        [index] if index == buffers.len() => Ok(()),
        [index] => Err(format!("expected the argument struct at buffer({}), found buffer({index})", buffers.len())),
        _ => Err("expected one argument struct at most".into()),
    }
}

/// `threadgroup T name[...];` statements. A declaration with a `*` or `&` before its bracket is a pointer, not an array.
fn threadgroup_arrays(body: &[Token]) -> Result<Vec<Declared>, String> {
    let mut arrays: Vec<Declared> = Vec::new();
    for start in 0..body.len() {
        if !body[start].is("threadgroup") || !(start == 0 || body[start - 1].ends_statement()) {
            continue;
        }
        let place = &body[start].place;
        let length = body[start..].iter().position(|token| token.is(";") || token.is("=")).ok_or_else(|| place.fault("expected `;`"))?;
        let declaration = &body[start..start + length];
        let head = || declaration.iter().take_while(|token| !token.is("["));
        if head().any(|token| token.is("*") || token.is("&")) {
            continue;
        }
        if body[start + length].is("=") || split(declaration).len() > 1 {
            return Err(place.fault("declare one threadgroup array a statement, without a value"));
        }
        let name = head().last().map_or_else(String::new, |token| token.text.clone());
        if arrays.iter().any(|other| other.array.name == name) {
            return Err(place.fault(&format!("there is a threadgroup array `{name}` in this kernel already")));
        }
        arrays.push(Declared { array: ThreadgroupArray { name, declaration: plain(declaration) }, start, end: start + length + 1 });
    }
    Ok(arrays)
}

/// The number of `ly_threadgroup_kib<N>()`: a launch needs it, and nobody but a compiler could work out an expression.
fn threadgroup_kib(body: &[Token]) -> Result<u32, String> {
    let Some(at) = body.iter().position(|token| token.is("ly_threadgroup_kib")) else { return Ok(0) };
    let argument = body.get(at + 3).filter(|close| close.is(">")).map(|_| &body[at + 2]);
    argument.and_then(|token| token.text.parse().ok()).ok_or_else(|| body[at].place.fault("expected `ly_threadgroup_kib<N>()`, N a number"))
}
