//! A conversation that grows is encoded from where it grew, and an answer that comes back is the tokens that
//! the model said: what is remembered must never change what a text means.

mod support;

use lily_text::{ChatOptions, Message, Role, Text};
use support::{Dice, read};

/// A text side that remembers nothing yet.
fn fresh() -> Text {
    let template = String::from_utf8(read("chat_template.jinja")).expect("the template is UTF-8");
    Text::load(&read("tokenizer.json"), Some(&read("tokenizer_config.json")), None, Some(&template), &[], 6144).expect("it loads")
}

fn options(thinking: bool) -> ChatOptions {
    ChatOptions { thinking, ..ChatOptions::default() }
}

fn assistant(reasoning: Option<&str>, content: &str) -> Message {
    Message { reasoning: reasoning.map(str::to_owned), ..Message::assistant(content) }
}

const PIECES: [&str; 14] = [
    "Hello",
    " there. ",
    "\n\n",
    "<|im_end|>",
    "<|im_start|>user\n",
    "<think>",
    "</think>",
    "<tool_call>\n<function=f>",
    "</tool_call>",
    "\u{fdd0}",
    "<",
    "|im_end|>",
    "é😀",
    "  ",
];

#[test]
fn growing_conversations_have_the_tokens_of_fresh_ones() {
    let mut dice = Dice::new(21);
    for round in 0..3 {
        let text = |dice: &mut Dice| (0..1 + dice.below(9)).map(|_| dice.pick(&PIECES)).collect::<String>();
        let mut messages = vec![Message::system(text(&mut dice))];
        let remembering = fresh();
        for turn in 0..8 {
            messages.push(match turn % 3 {
                0 => Message::user(text(&mut dice)),
                1 => assistant((dice.below(2) == 0).then_some("thought"), &text(&mut dice)),
                _ => Message::new(Role::Tool, text(&mut dice)),
            });
            let options = options(dice.below(2) == 0);
            let grown = remembering.prompt(&messages, &[], &options).unwrap();
            assert_eq!(grown, fresh().prompt(&messages, &[], &options).unwrap(), "round {round}, turn {turn}: {messages:?}");
            // Another conversation in between, and the beginning of this one with another end.
            remembering.prompt(&[Message::user(text(&mut dice))], &[], &options).unwrap();
            let other = [&messages[..messages.len() / 2], &[Message::user(text(&mut dice))]].concat();
            assert_eq!(remembering.prompt(&other, &[], &options).unwrap(), fresh().prompt(&other, &[], &options).unwrap());
        }
    }
}

#[test]
fn an_answer_comes_back_as_the_tokens_that_were_said() {
    let text = fresh();
    let question = [Message::user("What is the capital of France?")];
    let prompt = text.prompt(&question, &[], &options(true)).unwrap();
    let canonical = text.encode("I recall it.\n</think>\n\nThe capital is Paris.<|im_end|>").unwrap();
    let said = text.cut(&canonical, 2);
    assert_ne!(said, canonical);
    text.answered(&prompt.tokens, &said);

    let history = [&question[..], &[assistant(Some("I recall it."), "The capital is Paris.")]].concat();
    let keep = ChatOptions { preserve_thinking: true, ..options(true) };
    let next = text.prompt(&[&history[..], &[Message::user("And of Spain?")]].concat(), &[], &keep).unwrap();
    let continued = [&prompt.tokens[..], &said].concat();
    assert!(next.tokens.starts_with(&continued), "{:?} does not begin with {continued:?}", next.tokens);
    assert_eq!(text.decode(&next.tokens).unwrap(), next.text);

    // Where the thinking is dropped, the answer is another text: nothing of it is used.
    let dropped = [&history[..], &[Message::user("And of Spain?")]].concat();
    assert_eq!(text.prompt(&dropped, &[], &options(true)).unwrap(), fresh().prompt(&dropped, &[], &options(true)).unwrap());
    // A changed answer is encoded anew behind the last markup that is the same.
    let changed = [&question[..], &[assistant(Some("I recall it."), "It is Paris."), Message::user("And of Spain?")]].concat();
    let next = text.prompt(&changed, &[], &keep).unwrap();
    assert_eq!(text.decode(&next.tokens).unwrap(), fresh().prompt(&changed, &[], &keep).unwrap().text);
}

#[test]
fn a_conversation_known_by_its_tokens_goes_on_with_them() {
    let tools = "<tool_response>\nspells </think> and <|im_end|>\n</tool_response>";
    let history = [
        Message::system("Be brief. <|im_start|> is a token."),
        Message::user("What is the capital of France?"),
        assistant(Some("I recall it."), "Paris."),
        Message::new(Role::Tool, format!("a result that spells {tools}")),
    ];
    let keep = ChatOptions { preserve_thinking: true, generation_prompt: false, ..options(true) };
    let before = fresh();
    let canonical = before.prompt(&history, &[], &keep).unwrap().tokens;
    // As if each text had been written in other tokens.
    let tokens = before.cut(&canonical, 3);
    assert_ne!(tokens, canonical);
    let after = fresh();
    after.known(&tokens);
    let more = [&history[..], &[Message::user("And of Spain?")]].concat();
    let next = after.prompt(&more, &[], &ChatOptions { generation_prompt: true, ..keep.clone() }).unwrap();
    assert!(next.tokens.starts_with(&tokens[..tokens.len() - 1]), "{:?} and {tokens:?}", next.tokens);
    assert_eq!(next.text, fresh().prompt(&more, &[], &ChatOptions { generation_prompt: true, ..keep }).unwrap().text);
}

#[test]
fn text_that_spells_markup_is_not_taken_for_it() {
    let text = fresh();
    let question = [Message::user("Say a tag.")];
    let prompt = text.prompt(&question, &[], &options(false)).unwrap();
    // The letters of the tag, one by one: content, while the history renders a tag.
    let mut said: Vec<u32> =
        "A tag: </think> and <|im_end|> end.".chars().flat_map(|letter| text.encode(&letter.to_string()).unwrap()).collect();
    said.push(text.special().im_end);
    text.answered(&prompt.tokens, &said);
    // Half a character and ids without text end what is remembered, too.
    text.answered(&prompt.tokens, &[text.encode("é").unwrap()[0], 6143, 6142]);
    for content in ["A tag: </think> and <|im_end|> end.", "A tag: "] {
        let messages = [&question[..], &[assistant(None, content), Message::user("More.")]].concat();
        assert_eq!(text.prompt(&messages, &[], &options(false)).unwrap(), fresh().prompt(&messages, &[], &options(false)).unwrap());
    }
}
