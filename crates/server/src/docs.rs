//! `/docs`: the `OpenAPI` document as one page to read. Nothing is loaded from anywhere, nothing runs:
//! the page's policy allows its own style sheet by hash, and that is all.

use std::fmt::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use sha2::{Digest, Sha256};

const STYLE: &str = include_str!("docs/style.css");
const METHODS: [&str; 5] = ["get", "post", "patch", "put", "delete"];

/// The page, and the `Content-Security-Policy` that it is served with.
pub(crate) fn page(document: &Value) -> (String, String) {
    let hash = STANDARD.encode(Sha256::digest(STYLE));
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{hash}'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'"
    );
    let page = Page { document, html: String::with_capacity(128 * 1024) };
    (page.whole(), policy)
}

struct Page<'a> {
    document: &'a Value,
    html: String,
}

impl<'a> Page<'a> {
    fn whole(mut self) -> String {
        let document = self.document;
        let info = &document["info"];
        let title = escape(text(&info["title"]));
        self.put(&format!(
            "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
             <title>{title} API</title><style>{STYLE}</style><main><header><h1>{title} API</h1>"
        ));
        self.prose(text(&info["description"]));
        let server = escape(text(&document["servers"][0]["url"]));
        self.put(&format!(
            "<p>Server <code>{server}</code>. For programs: <a href=\"/openapi.json\">\
             openapi.json</a>.</p><pre>curl {server}/v1/sandboxes -H \"Authorization: Bearer \
             $BASTIDE_API_KEY\" \\\n  --json '{{\"template\": \"standard\"}}'</pre></header>"
        ));
        let tags = document["tags"].as_array().map_or(&[][..], Vec::as_slice);
        self.contents(tags);
        for tag in tags {
            self.section(tag);
        }
        self.schemas();
        self.put("</main></html>");
        self.html
    }

    fn contents(&mut self, tags: &[Value]) {
        self.put("<nav><ul>");
        for tag in tags {
            let name = text(&tag["name"]);
            self.put(&format!("<li><a href=\"#{}\">{}</a></li>", anchor(name), escape(name)));
        }
        self.put("<li><a href=\"#schemas\">Schemas</a></li></ul></nav>");
    }

    fn section(&mut self, tag: &Value) {
        let name = text(&tag["name"]);
        let about = escape(text(&tag["description"]));
        let id = anchor(name);
        self.put(&format!("<section id=\"{id}\"><h2>{}</h2><p>{about}</p>", escape(name)));
        let paths = self.document["paths"].as_object();
        for (path, item) in paths.into_iter().flatten() {
            for method in METHODS {
                let operation = &item[method];
                if operation["tags"][0] == tag["name"] {
                    self.operation(method, path, operation);
                }
            }
        }
        self.put("</section>");
    }

    fn operation(&mut self, method: &str, path: &str, operation: &Value) {
        self.put(&format!(
            "<details><summary><b class=\"{method}\">{}</b> <code>{}</code> <span>{}</span>\
             </summary>",
            method.to_ascii_uppercase(),
            escape(path),
            escape(text(&operation["summary"]))
        ));
        self.prose(text(&operation["description"]));
        self.parameters(&operation["parameters"]);
        let request = operation["requestBody"]["content"].as_object();
        for (kind, content) in request.into_iter().flatten() {
            let shape = shape(&content["schema"]);
            self.put(&format!("<h4>Request</h4><p>{shape} <small>{}</small></p>", escape(kind)));
        }
        self.put("<h4>Answers</h4><table>");
        for (status, answer) in operation["responses"].as_object().into_iter().flatten() {
            let about = prose_line(text(&answer["description"]));
            let content = answer["content"].as_object();
            let shapes: Vec<String> = content
                .into_iter()
                .flatten()
                .map(|(_, content)| shape(&content["schema"]))
                .collect();
            let shapes = shapes.join(", ");
            self.put(&format!(
                "<tr><td><code>{}</code></td><td>{about}</td><td>{shapes}</td></tr>",
                escape(status)
            ));
        }
        self.put("</table></details>");
    }

    fn parameters(&mut self, parameters: &Value) {
        let Some(parameters) = parameters.as_array().filter(|all| !all.is_empty()) else { return };
        self.put("<h4>Parameters</h4><table>");
        for parameter in parameters {
            let required = if parameter["required"] == true { " <em>required</em>" } else { "" };
            self.put(&format!(
                "<tr><td><code>{}</code></td><td>{}{required}</td><td>{}</td></tr>",
                escape(text(&parameter["name"])),
                escape(text(&parameter["in"])),
                prose_line(text(&parameter["description"]))
            ));
        }
        self.put("</table>");
    }

    fn schemas(&mut self) {
        self.put("<section id=\"schemas\"><h2>Schemas</h2>");
        let schemas = self.document["components"]["schemas"].as_object();
        for (name, schema) in schemas.into_iter().flatten() {
            let id = anchor(name);
            self.put(&format!("<article id=\"{id}\"><h3>{}</h3>", escape(name)));
            self.prose(text(&schema["description"]));
            self.fields(schema);
            if !schema["example"].is_null() {
                let example = serde_json::to_string_pretty(&schema["example"]).unwrap_or_default();
                self.put(&format!("<pre>{}</pre>", escape(&example)));
            }
            self.put("</article>");
        }
        self.put("</section>");
    }

    fn fields(&mut self, schema: &Value) {
        let Some(fields) = schema["properties"].as_object() else {
            let shape = shape(schema);
            self.put(&format!("<p>{shape}</p>"));
            return;
        };
        let required = schema["required"].as_array().map_or(&[][..], Vec::as_slice);
        self.put("<table>");
        for (name, field) in fields {
            let must = required.iter().any(|one| one == name);
            let must = if must { " <em>required</em>" } else { "" };
            let default = match &field["default"] {
                Value::Null => String::new(),
                value => format!(" Default <code>{}</code>.", escape(&value.to_string())),
            };
            self.put(&format!(
                "<tr><td><code>{}</code></td><td>{}{must}</td><td>{}{default}</td></tr>",
                escape(name),
                shape(field),
                prose_line(text(&field["description"]))
            ));
        }
        self.put("</table>");
    }

    fn prose(&mut self, text: &str) {
        for paragraph in text.split("\n\n").filter(|paragraph| !paragraph.trim().is_empty()) {
            self.put(&format!("<p>{}</p>", prose_line(paragraph)));
        }
    }

    fn put(&mut self, html: &str) {
        self.html.push_str(html);
    }
}

/// What a schema is, in a word, with links to those that have a name.
fn shape(schema: &Value) -> String {
    if let Some(reference) = schema["$ref"].as_str() {
        let name = reference.rsplit('/').next().unwrap_or_default();
        return format!("<a href=\"#{}\">{}</a>", anchor(name), escape(name));
    }
    for key in ["oneOf", "allOf", "anyOf"] {
        if let Some(choices) = schema[key].as_array() {
            let shapes: Vec<String> =
                choices.iter().filter(|choice| choice["type"] != "null").map(shape).collect();
            return shapes.join(" or ");
        }
    }
    if let Some(words) = schema["enum"].as_array() {
        let words: Vec<String> = words
            .iter()
            .filter_map(Value::as_str)
            .map(|word| format!("<code>{}</code>", escape(word)))
            .collect();
        return words.join(" ");
    }
    if schema["type"] == "array" {
        return format!("array of {}", shape(&schema["items"]));
    }
    match &schema["type"] {
        Value::String(name) => escape(name),
        Value::Array(names) => {
            let names: Vec<String> = names
                .iter()
                .filter_map(Value::as_str)
                .filter(|name| *name != "null")
                .map(escape)
                .collect();
            names.join(" or ")
        }
        _ => "bytes".into(),
    }
}

/// Escaped, with `code` between backticks.
fn prose_line(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for (i, part) in text.split('`').enumerate() {
        let part = escape(part);
        if i % 2 == 0 {
            html.push_str(&part);
        } else {
            let _ = write!(html, "<code>{part}</code>");
        }
    }
    html
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn anchor(name: &str) -> String {
    let good = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    name.chars().map(good).collect()
}

fn escape(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            other => html.push(other),
        }
    }
    html
}
