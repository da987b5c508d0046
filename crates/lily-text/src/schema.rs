//! What a tool's JSON schema says about the type of one argument.

use serde_json::{Map, Value};

/// References may be nested, and may be circular.
const DEPTH_MAX: usize = 16;

/// The JSON types that a value may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Types(u8);

impl Types {
    pub const NULL: Types = Types(1);
    pub const BOOLEAN: Types = Types(2);
    pub const INTEGER: Types = Types(4);
    pub const NUMBER: Types = Types(8);
    pub const STRING: Types = Types(16);
    pub const ARRAY: Types = Types(32);
    pub const OBJECT: Types = Types(64);
    pub const ANY: Types = Types(127);

    pub fn has(self, other: Types) -> bool {
        self.0 & other.0 != 0
    }

    pub fn or(self, other: Types) -> Types {
        Types(self.0 | other.0)
    }

    fn and(self, other: Types) -> Types {
        Types(self.0 & other.0)
    }

    fn named(name: &str) -> Types {
        match name {
            "null" => Types::NULL,
            "boolean" | "bool" => Types::BOOLEAN,
            "integer" | "int" => Types::INTEGER,
            "number" | "float" => Types::NUMBER.or(Types::INTEGER),
            "string" | "str" => Types::STRING,
            "array" | "list" => Types::ARRAY,
            "object" | "dict" => Types::OBJECT,
            _ => Types::ANY,
        }
    }

    fn of(value: &Value) -> Types {
        match value {
            Value::Null => Types::NULL,
            Value::Bool(_) => Types::BOOLEAN,
            Value::Number(number) if number.is_f64() => Types::NUMBER,
            Value::Number(_) => Types::INTEGER,
            Value::String(_) => Types::STRING,
            Value::Array(_) => Types::ARRAY,
            Value::Object(_) => Types::OBJECT,
        }
    }
}

/// The parameters of one tool.
#[derive(Clone, Debug)]
pub(crate) struct Parameters<'a> {
    root: &'a Value,
}

impl<'a> Parameters<'a> {
    pub fn new(root: &'a Value) -> Parameters<'a> {
        Parameters { root }
    }

    /// The types that an argument may have. An argument that the schema does not know is a string: the
    /// format writes strings bare, and text is never wrong.
    pub fn types_of(&self, argument: &str) -> Types {
        self.property(self.root, argument, 0).map_or(Types::STRING, |schema| self.types(schema, 0))
    }

    pub fn knows(&self, argument: &str) -> bool {
        self.property(self.root, argument, 0).is_some()
    }

    /// The schema of a property, wherever the parameters' schema hides it.
    fn property(&self, schema: &'a Value, name: &str, depth: usize) -> Option<&'a Value> {
        if depth > DEPTH_MAX {
            return None;
        }
        let schema = schema.as_object()?;
        if let Some(found) = schema.get("properties").and_then(|properties| properties.get(name)) {
            return Some(found);
        }
        let target = self.target(schema).into_iter();
        let branches = ["allOf", "anyOf", "oneOf"].into_iter().filter_map(|key| schema.get(key)?.as_array()).flatten();
        target
            .chain(branches)
            .find_map(|branch| self.property(branch, name, depth + 1))
            .or_else(|| schema.get("additionalProperties").filter(|rest| rest.is_object()))
    }

    /// Where a `$ref` into this schema points.
    fn target(&self, schema: &Map<String, Value>) -> Option<&'a Value> {
        let pointer = schema.get("$ref")?.as_str()?.strip_prefix('#')?;
        self.root.pointer(pointer)
    }

    fn types(&self, schema: &'a Value, depth: usize) -> Types {
        let Some(schema) = schema.as_object() else { return Types::ANY };
        if depth > DEPTH_MAX {
            return Types::ANY;
        }
        let mut types = own_types(schema);
        if let Some(target) = self.target(schema) {
            types = types.and(self.types(target, depth + 1));
        }
        for branch in branches(schema, "allOf") {
            types = types.and(self.types(branch, depth + 1));
        }
        for key in ["anyOf", "oneOf"] {
            let union = branches(schema, key).iter().map(|branch| self.types(branch, depth + 1)).reduce(Types::or);
            types = types.and(union.unwrap_or(Types::ANY));
        }
        if schema.get("nullable") == Some(&Value::Bool(true)) {
            types = types.or(Types::NULL);
        }
        types
    }
}

fn branches<'a>(schema: &'a Map<String, Value>, key: &str) -> &'a [Value] {
    schema.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The types that a schema states itself: by `type`, else by the values that it lists, else by its shape.
fn own_types(schema: &Map<String, Value>) -> Types {
    match schema.get("type") {
        Some(Value::String(name)) => return Types::named(name),
        Some(Value::Array(names)) => {
            let union = names.iter().filter_map(Value::as_str).map(Types::named).reduce(Types::or);
            return union.unwrap_or(Types::ANY);
        }
        _ => {}
    }
    if let Some(value) = schema.get("const") {
        return Types::of(value);
    }
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        return values.iter().map(Types::of).reduce(Types::or).unwrap_or(Types::ANY);
    }
    if schema.contains_key("properties") {
        return Types::OBJECT;
    }
    if schema.contains_key("items") {
        return Types::ARRAY;
    }
    Types::ANY
}
