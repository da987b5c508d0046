//! Reads kernels written in the project's subset of the Metal Shading Language and writes C++ for the simulator, CUDA,
//! or one text for Metal's compiler. The subset is described in `kernels/dialect/README.md`.
//!
//! Start with [`translate`]. It finds entries (`kernel void ...`, and the `LY_KERNEL` instances of kernel templates) at
//! file scope and hands each to its target, `sim` or `cuda`; all else passes through token by token, on its own
//! line, so that a compiler's messages name lines of the `.metal` file. Without dependencies, since `build.rs` uses it.

pub mod cuda;
mod definition;
mod sim;
mod source;
#[cfg(test)]
mod tests;
mod token;

use std::collections::HashMap;

use definition::Definition;
use token::{Token, lex, matching, plain, split, without_space};

/// Reads a file of the kernels' folder by its path in it, such as `lib/rows.h`.
pub type Read<'a> = &'a dyn Fn(&str) -> Option<String>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// C++ that includes `dialect/sim.h`.
    Sim,
    /// CUDA, self-contained: `dialect/cuda.h` is read in place.
    Cuda,
}

/// What came out of one kernel file.
#[derive(Clone, Debug)]
pub struct Translation {
    pub text: String,
    /// The entries in `text`, in its order.
    pub kernels: Vec<Kernel>,
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    pub name: String,
    /// In the order of the source, which is also that of a CUDA entry, less the positions.
    pub parameters: Vec<Parameter>,
    pub threadgroup_arrays: Vec<ThreadgroupArray>,
    /// KiB of threadgroup arrays that a launch on CUDA must make room for, as the kernel says (`ly_threadgroup_kib`); 0
    /// where they fit into what every kernel has.
    pub threadgroup_kib: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    pub name: String,
    pub kind: Kind,
    /// As C++ and CUDA write it: `const bfloat *`, `const NormArgs &`, `uint`.
    pub ty: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Buffer {
        index: usize,
        writable: bool,
    },
    /// The argument struct.
    Args {
        index: usize,
    },
    /// A position, by its Metal attribute: one of [`POSITIONS`].
    Builtin(&'static str),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadgroupArray {
    pub name: String,
    /// Such as `float part [ 32 ]`.
    pub declaration: String,
}

/// The attributes of the parameters that say where a thread is.
pub const POSITIONS: [&str; 6] = [
    "threadgroup_position_in_grid",
    "threadgroups_per_grid",
    "thread_index_in_threadgroup",
    "thread_index_in_simdgroup",
    "simdgroup_index_in_threadgroup",
    "simdgroups_per_threadgroup",
];

/// A line of a kernel source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub file: std::rc::Rc<str>,
    pub line: usize,
}

impl Place {
    fn new(file: &str, line: usize) -> Self {
        Place { file: file.into(), line }
    }

    fn fault(&self, what: &str) -> String {
        format!("{}:{}: {what}", self.file, self.line)
    }
}

/// Translates `file`, given relative to the kernels' folder, with everything it includes.
///
/// # Errors
/// A message that starts with the file and line of what is not of the subset.
pub fn translate(file: &str, read: Read, target: Target) -> Result<Translation, String> {
    translate_only(file, read, target, &|_| true)
}

/// [`translate`], less the entries that are not `wanted`.
pub fn translate_only(file: &str, read: Read, target: Target, wanted: &dyn Fn(&str) -> bool) -> Result<Translation, String> {
    let mut tokens = Vec::new();
    for segment in source::segments(file, read)? {
        tokens.extend(lex(&segment.text, segment.place)?);
    }
    let mut writer = Writer { target, wanted, templates: HashMap::new(), text: String::new(), place: None, kernels: Vec::new() };
    match target {
        Target::Sim => writer.text.push_str(&sim::open(file)),
        Target::Cuda => writer.text.push_str(&source::dialect("dialect/cuda.h", read)?),
    }
    writer.file_scope(&tokens)?;
    if target == Target::Sim {
        writer.text.push_str(&sim::close(file, &writer.kernels));
    }
    Ok(Translation { text: writer.text, kernels: writer.kernels })
}

/// `file` and all it includes as one text for Metal's compiler, with the dialect's `metal.h` first.
///
/// # Errors
/// A file that does not exist, with the place that includes it; a directive that is not of the subset.
pub fn metal_source(file: &str, read: Read) -> Result<String, String> {
    let mut text = source::dialect("dialect/metal.h", read)?;
    for segment in source::segments(file, read)? {
        text.push_str(&format!("#line {} \"{}\"\n{}", segment.place.line, segment.place.file, segment.text));
    }
    Ok(text)
}

/// Writes one translation.
struct Writer<'a> {
    target: Target,
    wanted: &'a dyn Fn(&str) -> bool,
    templates: HashMap<String, Definition>,
    text: String,
    /// The source line that the end of `text` is on; `None` where a `#line` must come next.
    place: Option<Place>,
    kernels: Vec<Kernel>,
}

impl Writer<'_> {
    fn file_scope(&mut self, tokens: &[Token]) -> Result<(), String> {
        let (mut at, mut braces, mut parentheses) = (0, 0, 0);
        while at < tokens.len() {
            let token = &tokens[at];
            if braces == 0
                && let Some(next) = self.item(tokens, at)?
            {
                at = next;
                continue;
            }
            match token.text.as_str() {
                "{" => braces += 1,
                "}" => braces -= 1,
                "(" => parentheses += 1,
                ")" => parentheses -= 1,
                _ => {}
            }
            // No place: an entry or an instance came before.
            let starts_statement = self.place.is_none() || tokens[at - 1].ends_statement() || tokens[at - 1].text.is_empty();
            let constant = token.is("constant") && braces == 0 && parentheses == 0 && starts_statement;
            self.token(token, if constant { Some(self.constant(&tokens[at..])) } else { None });
            at += 1;
        }
        Ok(())
    }

    /// Reads an entry, a kernel template or an instance at `at`; gives the token after it.
    fn item(&mut self, tokens: &[Token], at: usize) -> Result<Option<usize>, String> {
        let token = &tokens[at];
        if token.is("LY_KERNEL") {
            return self.instance(tokens, at).map(Some);
        }
        let template = if token.is("template") && tokens.get(at + 1).is_some_and(|next| next.is("<")) {
            let close = matching(tokens, at + 1)?;
            tokens.get(close + 1).is_some_and(|next| next.is("kernel")).then_some(close)
        } else {
            None
        };
        if template.is_none() && !token.is("kernel") {
            return Ok(None);
        }
        let (definition, end) = Definition::read(tokens, at, template)?;
        if template.is_some() {
            if let Some(first) = self.templates.get(&definition.name) {
                let what = format!("kernel template `{}` is already at {}:{}", definition.name, first.place.file, first.place.line);
                return Err(token.place.fault(&what));
            }
            self.templates.insert(definition.name.clone(), definition);
        } else {
            let entry = definition.name.clone();
            self.entry(&definition, &entry, &[], &token.place)?;
        }
        self.place = None;
        Ok(Some(end))
    }

    /// `LY_KERNEL(entry, template<1, true>)`, with or without a semicolon.
    fn instance(&mut self, tokens: &[Token], at: usize) -> Result<usize, String> {
        let place = tokens[at].place.clone();
        let malformed = || place.fault("expected `LY_KERNEL(entry, template<1, true>)`");
        if !tokens.get(at + 1).is_some_and(|next| next.is("(")) {
            return Err(malformed());
        }
        let close = matching(tokens, at + 1)?;
        let parts = split(&tokens[at + 2..close]);
        let [[entry], [name, open, .., last]] = parts.as_slice() else { return Err(malformed()) };
        if !open.is("<") || !last.is(">") {
            return Err(malformed());
        }
        let values: Vec<String> = split(&parts[1][2..parts[1].len() - 1]).into_iter().map(plain).collect();
        let definition = self.templates.get(&name.text).cloned();
        let definition = definition.ok_or_else(|| place.fault(&format!("there is no kernel template `{}` above", name.text)))?;
        if values.len() != definition.template.len() {
            let (wants, has) = (definition.template.len(), values.len());
            return Err(place.fault(&format!("kernel template `{}` has {wants} parameters, this names {has}", name.text)));
        }
        self.entry(&definition, &entry.text, &values, &place)?;
        self.place = None;
        Ok(close + 1 + usize::from(tokens.get(close + 1).is_some_and(|next| next.is(";"))))
    }

    /// Writes `definition` as the entry `name`, its template parameters being `values`.
    fn entry(&mut self, definition: &Definition, name: &str, values: &[String], place: &Place) -> Result<(), String> {
        if !(self.wanted)(name) {
            return Ok(());
        }
        if self.kernels.iter().any(|kernel| kernel.name == name) {
            return Err(place.fault(&format!("there is an entry `{name}` already")));
        }
        let kernel = Kernel {
            name: name.to_owned(),
            parameters: definition.parameters.clone(),
            threadgroup_arrays: definition.arrays.iter().map(|array| array.array.clone()).collect(),
            threadgroup_kib: definition.threadgroup_kib,
        };
        let constants: String =
            definition.template.iter().zip(values).map(|((ty, name), value)| format!("constexpr {ty} {name} = {value}; ")).collect();
        self.line_of(&definition.body_place());
        match self.target {
            Target::Sim => self.text.push_str(&sim::head(&kernel, &constants)),
            Target::Cuda => self.text.push_str(&cuda::head(&kernel, &constants, &cuda::Says::of(&definition.body))),
        }
        let mut at = 0;
        while at < definition.body.len() {
            if let Some(array) = definition.arrays.iter().find(|array| array.start == at) {
                self.text.push_str(&definition.body[at].space);
                self.text.push_str(&match self.target {
                    Target::Sim => sim::array(&array.array),
                    Target::Cuda => cuda::array(&kernel, &array.array),
                });
                self.place = Some(definition.body[at].place.clone());
                at = array.end;
            } else {
                self.token(&definition.body[at], None);
                at += 1;
            }
        }
        self.text.push_str("} }\n");
        self.kernels.push(kernel);
        Ok(())
    }

    /// Writes a token with the white space before it, or `instead`.
    fn token(&mut self, token: &Token, instead: Option<&str>) {
        let same_file = self.place.as_ref().is_some_and(|place| place.file == token.place.file && place.line <= token.place.line);
        let ends = token.space.matches('\n').count();
        if same_file && self.place.as_ref().is_some_and(|place| place.line + ends == token.place.line) {
            self.text.push_str(&token.space);
        } else if !token.text.is_empty() {
            self.line_of(&token.place);
        }
        self.place = Some(token.place.clone());
        self.text.push_str(match (instead, token.text.as_str()) {
            (Some(text), _) => text,
            (None, "inline") if self.target == Target::Cuda => "__device__ __forceinline__",
            (None, pragma) if pragma.starts_with('#') && self.target == Target::Sim => "",
            (None, word) => without_space(word),
        });
    }

    fn line_of(&mut self, place: &Place) {
        if !self.text.ends_with('\n') {
            self.text.push('\n');
        }
        self.text.push_str(&format!("#line {} \"{}\"\n", place.line, place.file));
        self.place = Some(place.clone());
    }

    /// What `constant` at file scope becomes: values fold into the code, arrays need a place of their own on CUDA.
    fn constant(&self, tokens: &[Token]) -> &'static str {
        let array = tokens.iter().take_while(|token| !token.is("=") && !token.is(";")).any(|token| token.is("["));
        if array && self.target == Target::Cuda { "static __constant__ const" } else { "static constexpr" }
    }
}
