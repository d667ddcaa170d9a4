//! envd's two services.

mod entry;
mod filesystem;
mod process;
mod watch_calls;

use std::sync::Arc;

use serde::Serialize;

pub(crate) use self::entry::{Entry, of_path};
pub(crate) use self::filesystem::filesystem;
pub(crate) use self::process::process;
use crate::accounts::Account;
use crate::http::Request;
use crate::refusal::{Code, Refusal, Result};
use crate::state::State;

/// The answer of a call that has nothing to say.
#[derive(Debug, Serialize)]
struct Nothing {}

fn no_such(procedure: &str) -> Refusal {
    Refusal::new(Code::Unimplemented, format!("no such procedure: {procedure}"))
}

/// Who a call runs as: `Authorization: Basic base64("<user>:")`, else the sandbox's user.
fn caller(state: &Arc<State>, request: &Request) -> Result<Account> {
    state.account(user_of(request)?.as_deref())
}

pub(crate) fn user_of(request: &Request) -> Result<Option<String>> {
    use base64::Engine as _;
    let Some(header) = request.headers().get(http::header::AUTHORIZATION) else { return Ok(None) };
    let header = header.to_str().unwrap_or("");
    let Some((scheme, credentials)) = header.split_once(' ') else { return Ok(None) };
    if !scheme.eq_ignore_ascii_case("basic") {
        return Ok(None);
    }
    let decoded = base64::engine::general_purpose::STANDARD.decode(credentials.trim());
    let text = decoded.ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let text =
        text.ok_or_else(|| Refusal::new(Code::Unauthenticated, "invalid authorization header"))?;
    Ok(Some(text.split(':').next().unwrap_or("").to_owned()))
}
