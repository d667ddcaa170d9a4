//! What the mock agent says, to the letter: clients are tested against these texts.

use events::{ContentPart, FileAction, ItemKind, ItemRole, ReasoningVisibility};
use serde_json::json;

use crate::conversion::{Conversion, Item};

const PROMPT: &str = "Mock agent ready. Tell me what to send next. Type `help` for options.";

const HELP: &str = "Mock agent commands:\n\
    - demo: run a full UI coverage sequence with markers.\n\
    - markdown: streaming markdown fixture.\n\
    - tool: tool call + tool result with file refs.\n\
    - status: status item updates.\n\
    - image: message with image content part.\n\
    - unknown: item.kind=unknown example.\n\
    - permission: permission requests (pending).\n\
    - question: question requests (pending).\n\
    - error: error + agent.unparsed events.\n\
    - unparsed: emit agent.unparsed only.\n\
    - end: emit session.ended.\n\n\
    Any other text will be echoed as an assistant message.";

const MARKDOWN: &[&str] = &[
    "# Markdown Demo\n\n**Bo",
    "ld**, *ita",
    "lic*, ***bold-",
    "italic***, and ~~stri",
    "kethrough~~.\n\nInline code: `const x = 1`.\n\n## Lists\n- Item one\n  - Nested item\n- Item two\n\n1.",
    " First\n2. Second\n\n> Blockquote with **bold** text.\n\n## Code\n```t",
    "s\nconst answer: number = 42;\nconsole.log(answer);\n```\n\n## Table\n| Column A | Column B |\n|:---------|---------:|\n| Left",
    "     | Right    |\n| Alpha    | Beta     |\n\n## Link\n[Example](https://example.com)\n\n---\n\nEnd of markdown demo.",
];

type Part = fn(&str) -> Vec<Step>;

/// The parts of the demo, each after a message that announces it.
const DEMO: &[(&str, Part)] = &[
    ("Next: system message (system role).", system),
    ("Next: assistant message with deltas, reasoning, and JSON content parts.", rich),
    ("Next: status item updates.", status),
    ("Next: markdown rendering + streaming markdown deltas.", markdown),
    ("Next: tool call item.", tool),
    ("Next: image output content part.", image),
    ("Next: unknown item kind.", unknown),
    ("Next: permission requests (pending).", permissions),
    ("Next: question requests (pending).", questions),
    ("Next: error and agent.unparsed events.", error),
];

#[derive(Debug)]
pub(super) enum Step {
    Say(Conversion),
    /// In the daemon's name.
    Fail(Conversion),
    /// With what was printed.
    Garble(Conversion, &'static str),
}

/// A turn: the user's message, what it asks for, and the prompt.
pub(super) fn steps(turn: u64, message: &str) -> Vec<Step> {
    let name = format!("mock_{turn}");
    let text = message.trim();
    let mut steps = Vec::new();
    if !text.is_empty() {
        steps.extend(said(&format!("{name}_user"), ItemRole::User, text));
    }
    let (command, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    steps.extend(match command.to_ascii_lowercase().as_str() {
        "" => Vec::new(),
        "help" => said(&format!("{name}_help"), ItemRole::Assistant, HELP),
        "demo" => demo(&name),
        "markdown" => markdown(&name),
        "tool" | "tools" | "tooling" => tool(&name),
        "status" => status(&name),
        "image" => image(&name),
        "unknown" => unknown(&name),
        "permission" | "permissions" => permissions(&name),
        "question" | "questions" => questions(&name),
        "error" => error(&name),
        "unparsed" => unparsed(),
        "end" | "ended" | "session.end" => {
            steps.push(Step::Fail(Conversion::SessionEnded));
            return steps;
        }
        "echo" | "say" => echo(&name, rest.trim()),
        _ => said(&format!("{name}_reply"), ItemRole::Assistant, text),
    });
    steps.extend(prompt(turn));
    steps
}

pub(super) fn prompt(turn: u64) -> Vec<Step> {
    said(&format!("mock_{turn}_prompt"), ItemRole::Assistant, PROMPT)
}

fn demo(name: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    for (n, (announced, part)) in DEMO.iter().enumerate() {
        let marker = format!("{name}_marker_{}", n + 1);
        steps.extend(said(&marker, ItemRole::Assistant, announced));
        steps.extend(part(name));
    }
    steps
}

fn said(native: &str, role: ItemRole, text: &str) -> Vec<Step> {
    let item = Item::new(native, ItemKind::Message, role);
    begun_and_done(item.with_content(vec![ContentPart::text(text)]))
}

fn begun_and_done(item: Item) -> Vec<Step> {
    vec![Step::Say(item.clone().started()), Step::Say(item.completed())]
}

fn delta(native: &str, text: &str) -> Step {
    Step::Say(Conversion::ItemDelta { native_item_id: native.to_owned(), delta: text.to_owned() })
}

fn echo(name: &str, text: &str) -> Vec<Step> {
    let text = if text.is_empty() { "Tell me what to say after `echo`." } else { text };
    said(&format!("{name}_echo"), ItemRole::Assistant, text)
}

fn system(name: &str) -> Vec<Step> {
    let item = Item::new(format!("{name}_system"), ItemKind::System, ItemRole::System);
    begun_and_done(item.with_content(vec![ContentPart::text("System ready for mock events.")]))
}

fn rich(name: &str) -> Vec<Step> {
    let native = format!("{name}_assistant_rich");
    let reasoning =
        |text: &str, visibility| ContentPart::Reasoning { text: text.into(), visibility };
    let item =
        Item::new(native.clone(), ItemKind::Message, ItemRole::Assistant).with_content(vec![
            ContentPart::text("Mock assistant response with rich content."),
            reasoning("Public reasoning for display.", ReasoningVisibility::Public),
            reasoning("Private reasoning hidden by default.", ReasoningVisibility::Private),
            ContentPart::Json { json: json!({ "ok": true, "stage": "analysis" }) },
        ]);
    vec![
        Step::Say(item.clone().started()),
        delta(&native, "Mock assistant "),
        delta(&native, "streaming delta."),
        Step::Say(item.completed()),
    ]
}

fn status(name: &str) -> Vec<Step> {
    let item = |detail: &str| {
        let item = Item::new(format!("{name}_status"), ItemKind::Status, ItemRole::Assistant);
        item.with_content(vec![ContentPart::status("Indexing", Some(detail.to_owned()))])
    };
    vec![Step::Say(item("2 files").started()), Step::Say(item("Done").completed())]
}

fn markdown(name: &str) -> Vec<Step> {
    let native = format!("{name}_markdown");
    let item = |text: &str| {
        let item = Item::new(native.clone(), ItemKind::Message, ItemRole::Assistant);
        item.with_content(vec![ContentPart::text(text)])
    };
    let mut steps = vec![Step::Say(item("Markdown demo (streaming follows)...").started())];
    steps.extend(MARKDOWN.iter().map(|text| delta(&native, text)));
    steps.push(Step::Say(item(&MARKDOWN.concat()).completed()));
    steps
}

fn tool(name: &str) -> Vec<Step> {
    let call_id = format!("{name}_call");
    let call = ContentPart::ToolCall {
        name: "mock.search".into(),
        arguments: r#"{"query":"example"}"#.into(),
        call_id: call_id.clone(),
    };
    let file = |file: &str, action, diff: Option<&str>| ContentPart::FileRef {
        path: format!("{name}/{file}"),
        action,
        diff: diff.map(str::to_owned),
    };
    let result = vec![
        ContentPart::ToolResult { call_id, output: "mock search results".into() },
        file("readme.md", FileAction::Read, None),
        file("output.txt", FileAction::Write, Some("+mock output\n")),
        file("patch.txt", FileAction::Patch, Some("@@ -1,1 +1,1 @@\n-old\n+new\n")),
    ];
    let called = Item::new(format!("{name}_tool_call"), ItemKind::ToolCall, ItemRole::Assistant);
    let returned = Item::new(format!("{name}_tool_result"), ItemKind::ToolResult, ItemRole::Tool);
    let mut steps = begun_and_done(called.with_content(vec![call]));
    let returned = returned.with_content(result);
    steps.extend([Step::Say(returned.clone().started()), Step::Say(returned.failed())]);
    steps
}

fn image(name: &str) -> Vec<Step> {
    let path = format!("{name}/image.png");
    let item = Item::new(format!("{name}_image"), ItemKind::Message, ItemRole::Assistant);
    begun_and_done(item.with_content(vec![
        ContentPart::text("Here is a mock image output."),
        ContentPart::Image { path, mime: Some("image/png".into()) },
    ]))
}

fn unknown(name: &str) -> Vec<Step> {
    let item = Item::new(format!("{name}_unknown"), ItemKind::Unknown, ItemRole::Assistant);
    begun_and_done(item.with_content(vec![ContentPart::text("Unknown item kind example.")]))
}

fn permissions(name: &str) -> Vec<Step> {
    let asked = |id: String, action: &str, metadata| {
        let metadata = Some(metadata);
        Step::Say(Conversion::PermissionRequested { id, action: action.to_owned(), metadata })
    };
    let command = json!({ "codexRequestKind": "commandExecution", "command": "echo mock" });
    let path = format!("{name}/deny.txt");
    let change = json!({ "codexRequestKind": "fileChange", "path": path });
    vec![
        asked(format!("{name}_permission"), "command_execution", command),
        asked(format!("{name}_permission_denied"), "file_change", change),
    ]
}

fn questions(name: &str) -> Vec<Step> {
    let asked = |id: String, prompt: &str, options: [&str; 2]| {
        let options = options.map(str::to_owned).to_vec();
        Step::Say(Conversion::QuestionRequested { id, prompt: prompt.to_owned(), options })
    };
    vec![
        asked(format!("{name}_question"), "Choose a color", ["Red", "Blue"]),
        asked(format!("{name}_question_reject"), "Allow mock experiment?", ["Yes", "No"]),
    ]
}

fn error(_name: &str) -> Vec<Step> {
    let details = Some(json!({ "mock": true }));
    let mut steps =
        vec![Step::Fail(Conversion::error("Mock error event.", Some("mock_error"), details))];
    steps.extend(unparsed());
    steps
}

fn unparsed() -> Vec<Step> {
    let conversion = Conversion::Unparsed {
        error: "unsupported payload".into(),
        location: "mock.stream".into(),
    };
    vec![Step::Garble(conversion, "mock")]
}
