//! The thinking switch in all its spellings. Every client has its own; two that disagree are an error.

use lily_text::ChatOptions;
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::fields::{Fields, mismatch};

/// What a request says about thinking.
#[derive(Debug)]
pub(crate) struct Thinking {
    pub options: ChatOptions,
    /// Most tokens that thinking may take; then the block is closed.
    pub budget: Option<usize>,
}

/// One spelling's opinion.
struct Vote {
    path: String,
    on: bool,
}

/// Reads `enable_thinking`, `thinking`, `think`, `reasoning_effort`, `reasoning` and `chat_template_kwargs`.
pub(crate) fn thinking(fields: &Fields<'_>, default_on: bool) -> Result<Thinking, ApiError> {
    let mut votes = Vec::new();
    let mut budget = fields.integer("thinking_budget", 0, i64::MAX)?;
    let mut preserve = fields.bool("preserve_thinking")?;
    let mut extra = Map::new();

    vote_bool(&mut votes, fields, "enable_thinking")?;
    vote_bool(&mut votes, fields, "think")?;
    vote_switch(&mut votes, &mut budget, fields)?;
    vote_effort(&mut votes, fields, "reasoning_effort")?;
    let reasoning_path = fields.at("reasoning");
    if let Some(map) = fields.map("reasoning")? {
        let reasoning = Fields::new(&reasoning_path, map);
        vote_bool(&mut votes, &reasoning, "enabled")?;
        vote_effort(&mut votes, &reasoning, "effort")?;
        budget = budget.or(reasoning.integer("max_tokens", 0, i64::MAX)?);
    }
    let kwargs_path = fields.at("chat_template_kwargs");
    if let Some(map) = fields.map("chat_template_kwargs")? {
        let kwargs = Fields::new(&kwargs_path, map);
        vote_bool(&mut votes, &kwargs, "enable_thinking")?;
        budget = budget.or(kwargs.integer("thinking_budget", 0, i64::MAX)?);
        preserve = preserve.or(kwargs.bool("preserve_thinking")?);
        extra = map.clone();
        for name in ["enable_thinking", "thinking_budget", "preserve_thinking", "messages", "tools", "add_generation_prompt"] {
            extra.remove(name);
        }
    }

    let on = decide(&votes)?.unwrap_or(default_on);
    let options = ChatOptions { thinking: on, preserve_thinking: preserve.unwrap_or(false), generation_prompt: true, extra };
    Ok(Thinking { options, budget: budget.filter(|_| on).map(|tokens| tokens as usize) })
}

fn vote_bool(votes: &mut Vec<Vote>, fields: &Fields<'_>, name: &str) -> Result<(), ApiError> {
    if let Some(on) = fields.bool(name)? {
        votes.push(Vote { path: fields.at(name), on });
    }
    Ok(())
}

/// `thinking: false` or `thinking: {"type": "disabled"}`; `budget_tokens` beside the type.
fn vote_switch(votes: &mut Vec<Vote>, budget: &mut Option<i64>, fields: &Fields<'_>) -> Result<(), ApiError> {
    let path = fields.at("thinking");
    match fields.get("thinking") {
        None => {}
        Some(Value::Bool(on)) => votes.push(Vote { path, on: *on }),
        Some(value @ Value::Object(_)) => {
            let switch = Fields::of(&path, value)?;
            *budget = budget.or(switch.integer("budget_tokens", 0, i64::MAX)?);
            match switch.string("type")? {
                Some("enabled") => votes.push(Vote { path, on: true }),
                Some("disabled") => votes.push(Vote { path, on: false }),
                Some("adaptive") | Some("auto") | None => {}
                Some(other) => {
                    let message = format!("expected enabled, disabled or adaptive, found the string {other:?}");
                    return Err(ApiError::field(switch.at("type"), message));
                }
            }
        }
        Some(other) => return Err(ApiError::field(path, mismatch("true, false or an object with a type", other))),
    }
    Ok(())
}

/// `none` is off; an effort that is worth a name is on. The format knows no degrees.
fn vote_effort(votes: &mut Vec<Vote>, fields: &Fields<'_>, name: &str) -> Result<(), ApiError> {
    let on = match fields.string(name)? {
        None | Some("minimal" | "auto") => return Ok(()),
        Some("none") => false,
        Some("low" | "medium" | "high" | "xhigh" | "max") => true,
        Some(other) => {
            let message = format!("expected none, minimal, low, medium, high, xhigh or max, found the string {other:?}");
            return Err(ApiError::field(fields.at(name), message));
        }
    };
    votes.push(Vote { path: fields.at(name), on });
    Ok(())
}

fn decide(votes: &[Vote]) -> Result<Option<bool>, ApiError> {
    let Some(first) = votes.first() else { return Ok(None) };
    if let Some(other) = votes.iter().find(|vote| vote.on != first.on) {
        let (on, off) = if first.on { (first, other) } else { (other, first) };
        let message = format!("{} switches thinking off and {} switches it on: send one of them", off.path, on.path);
        return Err(ApiError { message, ..ApiError::field(&other.path, "") });
    }
    Ok(Some(first.on))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: Value) -> Result<Thinking, ApiError> {
        thinking(&Fields::of("", &value).unwrap(), true)
    }

    #[test]
    fn every_spelling_switches() {
        let off = [
            json!({"enable_thinking": false}),
            json!({"think": false}),
            json!({"thinking": false}),
            json!({"thinking": {"type": "disabled"}}),
            json!({"reasoning_effort": "none"}),
            json!({"reasoning": {"effort": "none"}}),
            json!({"reasoning": {"enabled": false}}),
            json!({"chat_template_kwargs": {"enable_thinking": false}}),
            json!({"enable_thinking": false, "reasoning_effort": "none", "thinking": null}),
        ];
        for value in off {
            assert!(!read(value.clone()).unwrap().options.thinking, "{value}");
        }
        for value in
            [json!({}), json!({"enable_thinking": null}), json!({"reasoning_effort": "high"}), json!({"thinking": {"type": "adaptive"}})]
        {
            assert!(read(value.clone()).unwrap().options.thinking, "{value}");
        }
    }

    #[test]
    fn contradictions_name_both_fields() {
        let error = read(json!({"enable_thinking": true, "chat_template_kwargs": {"enable_thinking": false}})).unwrap_err();
        assert_eq!(error.status, 400);
        assert_eq!(
            error.message,
            "chat_template_kwargs.enable_thinking switches thinking off and enable_thinking switches it on: send one of them"
        );
        assert_eq!(read(json!({"thinking": false, "reasoning_effort": "low"})).unwrap_err().param.as_deref(), Some("reasoning_effort"));
    }

    #[test]
    fn budgets_and_other_template_switches_pass() {
        let thinking = read(json!({"thinking": {"type": "enabled", "budget_tokens": 64}, "chat_template_kwargs": {"preserve_thinking": true, "add_vision_id": true}})).unwrap();
        assert_eq!(thinking.budget, Some(64));
        assert!(thinking.options.preserve_thinking);
        assert_eq!(Value::Object(thinking.options.extra), json!({"add_vision_id": true}));
    }
}
