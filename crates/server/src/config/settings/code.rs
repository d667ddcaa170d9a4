//! The settings of code mode.

use crate::config::setting::{Setting, text, value};

pub(super) const SETTINGS: &[Setting] = &[
    text(
        "code.runtime",
        "ENGINE",
        "`quickjs`",
        "What runs the code of `/mcp`: `quickjs`, or `node`",
    ),
    text(
        "code.template",
        "NAME",
        "`standard`",
        "A template that has `node`, for `code.runtime = node`",
    ),
    value("code.timeout_ms", "MS", "`120000`", "How long the code of one call may run"),
    value("code.calls_at_once", "N", "`16`", "Calls of one key at the same time; more are refused"),
    value("code.requests_max", "N", "`500`", "Requests that the code of one call may make"),
    value("code.warm", "N", "`0`", "Sandboxes kept ready for calls"),
    text(
        "code.spec",
        "URL",
        "this server's own API",
        "The OpenAPI document (a URL or a file) of another API to call; with `code.api_base`",
    ),
    text("code.api_base", "URL", "this server", "Where that API is; gets the key of the caller"),
    value(
        "code.allowed_hosts",
        "ARRAY",
        "`localhost`, addresses, `public_url`",
        "Further names under which `/mcp` may be asked",
    ),
    value(
        "code.allowed_origins",
        "ARRAY",
        "`localhost`, loopback, `public_url`",
        "Further origins of pages that may ask `/mcp`: `https://app.example`",
    ),
    value("code.debug_endpoint", "BOOL", "`false`", "Answers `GET /debug/endpoints`, to anybody"),
];
