//! `bastide session`: conversations with an agent. What is seen while it works is in [`view`]; how a connection is
//! kept is in [`live`].

mod live;
mod socket;
mod start;
mod view;

use std::io::Read as _;
use std::process::ExitCode;

use api::session::{
    Session, SessionCreated, SessionDeleted, SessionForked, SessionResumed, Sessions,
};
use clap::{Args, Subcommand};
use http::{Method, header};
use http_body_util::BodyExt as _;
use model::SessionId;
use serde_json::{Value, json};

use self::live::{Live, Until};
use self::start::StartArgs;
use crate::client::{Client, empty};
use crate::failure::Failure;
use crate::out;

const SESSIONS: &str = "/v1/sessions";
/// Asked for at once.
const PAGE: usize = 1000;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start a session, and stay with it
    Start {
        #[command(flatten)]
        start: Box<StartArgs>,
        #[command(flatten)]
        stay: Stay,
    },
    /// See a session live, and talk to its agent; whoever was connected is not any more
    Attach {
        id: SessionId,
        /// Show what comes after this event; 0 is everything
        #[arg(long, value_name = "SEQUENCE", default_value_t = 0)]
        from: u64,
    },
    /// Say one thing, and show what comes of it until the turn is over
    Send {
        id: SessionId,
        /// What to say; `-` reads it from stdin
        text: String,
        /// Do not wait for the end of the turn
        #[arg(long)]
        no_wait: bool,
    },
    /// List your sessions
    #[command(visible_alias = "ls")]
    List,
    /// Go on with a session in a fresh sandbox, and stay with it
    Resume {
        id: SessionId,
        /// How long it may last
        #[arg(long, value_name = "SECONDS")]
        ttl_seconds: Option<u64>,
        #[command(flatten)]
        stay: Stay,
    },
    /// Begin a new session with the log of another, and stay with it
    Fork {
        id: SessionId,
        /// The last event that it has; all of them without it
        #[arg(long, value_name = "SEQUENCE")]
        at: Option<u64>,
        /// How long it may last
        #[arg(long, value_name = "SECONDS")]
        ttl_seconds: Option<u64>,
        #[command(flatten)]
        stay: Stay,
    },
    /// Print what was said and done, as Markdown
    Transcript {
        id: SessionId,
        /// As JSON, an entry a line
        #[arg(long)]
        jsonl: bool,
    },
    /// Delete sessions with their files and logs
    #[command(visible_alias = "rm")]
    Delete {
        #[arg(required = true)]
        ids: Vec<SessionId>,
    },
}

/// Whether a session that was just made is attached to.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Stay {
    /// Print its id, and leave it alone
    #[arg(long)]
    detach: bool,
}

pub(crate) async fn execute(
    client: &Client,
    command: Command,
    json: bool,
) -> Result<ExitCode, Failure> {
    match command {
        Command::Start { start, stay } => {
            let body = start.body(client).await?;
            let made: SessionCreated = client.json(Method::POST, SESSIONS, Some(&body)).await?;
            let id = made.chat_session_id.clone();
            stay_with(client, (&id, 0), stay, (json, &made)).await
        }
        Command::Attach { id, from } => {
            Live::new(client, &id.to_string(), json).run(from, None, Until::Left).await
        }
        Command::Send { id, text, no_wait } => {
            let until = if no_wait { Until::Said } else { Until::TurnOver };
            let id = id.to_string();
            let from = last_sequence(client, &id).await?;
            Live::new(client, &id, json).run(from, Some(said(text)?), until).await
        }
        Command::List => list(client, json).await,
        Command::Resume { id, ttl_seconds, stay } => {
            let id = id.to_string();
            let mut body = json!({ "chat_session_id": id });
            if let Some(seconds) = ttl_seconds {
                body["ttl_seconds"] = seconds.into();
            }
            let from = last_sequence(client, &id).await?;
            let path = format!("{SESSIONS}/resume");
            let resumed: SessionResumed = client.json(Method::POST, &path, Some(&body)).await?;
            out::note(format!("it was {}", resumed.resumed_from.previous_status));
            stay_with(client, (&id, from), stay, (json, &resumed)).await
        }
        Command::Fork { id, at, ttl_seconds, stay } => {
            let body = json!({ "at": at, "ttl_seconds": ttl_seconds });
            let path = format!("{SESSIONS}/{id}/fork");
            let forked: SessionForked = client.json(Method::POST, &path, Some(&body)).await?;
            let new = forked.chat_session_id.clone();
            stay_with(client, (&new, forked.forked_from.at), stay, (json, &forked)).await
        }
        Command::Transcript { id, jsonl } => transcript(client, &id, jsonl || json).await,
        Command::Delete { ids } => {
            for id in ids {
                let path = format!("{SESSIONS}/{id}");
                let deleted: SessionDeleted = client.json(Method::DELETE, &path, None).await?;
                if json {
                    out::json(&deleted)?;
                } else {
                    out::line(&deleted.chat_session_id);
                }
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The answer for programs, the id for scripts, or the live view for people.
async fn stay_with(
    client: &Client,
    (id, from): (&str, u64),
    stay: Stay,
    (json, answer): (bool, &impl serde::Serialize),
) -> Result<ExitCode, Failure> {
    if json {
        out::json(answer)?;
        return Ok(ExitCode::SUCCESS);
    }
    if stay.detach {
        out::line(id);
        return Ok(ExitCode::SUCCESS);
    }
    out::note(format!("session {id}"));
    Live::new(client, id, false).run(from, None, Until::Left).await
}

async fn list(client: &Client, json: bool) -> Result<ExitCode, Failure> {
    let mut sessions = Vec::new();
    let mut token: Option<String> = None;
    loop {
        let after = token.map(|token| format!("&token={token}")).unwrap_or_default();
        let path = format!("{SESSIONS}?limit={PAGE}{after}");
        let page: Sessions = client.json(Method::GET, &path, None).await?;
        sessions.extend(page.sessions);
        token = page.next_token;
        if token.is_none() {
            break;
        }
    }
    if json {
        out::json(&Sessions { sessions, next_token: None })?;
        return Ok(ExitCode::SUCCESS);
    }
    let row = |one: Session| {
        let used = one.usage.input_tokens + one.usage.output_tokens;
        vec![
            one.chat_session_id,
            one.status,
            one.agent.kind,
            one.llm.model.unwrap_or(one.llm.vendor),
            used.to_string(),
            one.created_at.to_string(),
            one.reason.unwrap_or_default(),
        ]
    };
    let rows = sessions.into_iter().map(row).collect();
    out::table(&["SESSION", "STATUS", "AGENT", "MODEL", "TOKENS", "CREATED", "REASON"], rows);
    Ok(ExitCode::SUCCESS)
}

async fn transcript(client: &Client, id: &SessionId, jsonl: bool) -> Result<ExitCode, Failure> {
    let kind = if jsonl { "application/jsonl" } else { "text/markdown" };
    let request = client
        .request(Method::GET, &format!("{SESSIONS}/{id}/transcript"))
        .header(header::ACCEPT, kind)
        .body(empty())
        .map_err(|error| Failure::new(error.to_string()))?;
    let mut body = client.send(request).await?.into_body();
    while let Some(frame) = body.frame().await {
        let broken = |error| Failure::new(format!("the transcript broke off: {error}"));
        if let Ok(bytes) = frame.map_err(broken)?.into_data() {
            out::stdout(&bytes)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn last_sequence(client: &Client, id: &str) -> Result<u64, Failure> {
    let path = format!("{SESSIONS}/{id}/events?limit=1");
    let page: Value = client.json(Method::GET, &path, None).await?;
    Ok(page["last_sequence"].as_u64().unwrap_or(0))
}

fn said(text: String) -> Result<String, Failure> {
    if text != "-" {
        return Ok(text);
    }
    let mut read = String::new();
    std::io::stdin().read_to_string(&mut read)?;
    Ok(read)
}
