//! `bastide account`: signing up and in with a code by e-mail, over HTTP.

use std::process::ExitCode;

use api::{CodeSent, SignedIn, Tenant, TenantCreated};
use clap::Subcommand;
use http::Method;
use serde_json::json;

use crate::client::Client;
use crate::failure::Failure;
use crate::out;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Have a code sent to an address, for a new account
    Signup {
        /// Where the code is sent
        email: String,
    },
    /// Finish signing up with the code; prints an API key, once
    Verify {
        /// Where the code was sent
        email: String,
        /// Six digits
        code: String,
    },
    /// Have a code sent to an account's address; with the code, print the account's token
    Login {
        /// Where the code is sent
        email: String,
        /// Six digits, when they have come
        code: Option<String>,
    },
    /// Show whose key or token is used
    Show,
}

pub(crate) async fn execute(
    client: &Client,
    command: Command,
    json: bool,
) -> Result<ExitCode, Failure> {
    match command {
        Command::Signup { email } => signup(client, &email, json).await?,
        Command::Verify { email, code } => verify(client, &email, &code, json).await?,
        Command::Login { email, code: None } => login(client, &email, json).await?,
        Command::Login { email, code: Some(code) } => token(client, &email, &code, json).await?,
        Command::Show => show(client, json).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn signup(client: &Client, email: &str, json: bool) -> Result<(), Failure> {
    let body = json!({ "email": email });
    let sent: CodeSent = client.json(Method::POST, "/v1/tenants", Some(&body)).await?;
    told(&sent, &format!("bastide account verify {email} CODE"), json)
}

async fn login(client: &Client, email: &str, json: bool) -> Result<(), Failure> {
    let body = json!({ "email": email });
    let sent: CodeSent = client.json(Method::POST, "/v1/auth/login", Some(&body)).await?;
    told(&sent, &format!("bastide account login {email} CODE"), json)
}

fn told(sent: &CodeSent, next: &str, json: bool) -> Result<(), Failure> {
    if json {
        return out::json(sent);
    }
    if let Some(code) = &sent.verify_code {
        out::line(code);
    }
    out::note("a code is on its way; it works for ten minutes");
    out::note(format!("hint: {next}"));
    Ok(())
}

async fn verify(client: &Client, email: &str, code: &str, json: bool) -> Result<(), Failure> {
    let body = json!({ "email": email, "code": code });
    let made: TenantCreated = client.json(Method::POST, "/v1/tenants/verify", Some(&body)).await?;
    if json {
        return out::json(&made);
    }
    out::line(&made.api_key);
    out::note(format!("{} for {} on plan {}", made.key_id, made.tenant_id, made.plan_tier));
    out::note("hint: keep it now, it cannot be shown again");
    Ok(())
}

async fn token(client: &Client, email: &str, code: &str, json: bool) -> Result<(), Failure> {
    let body = json!({ "email": email, "code": code });
    let signed_in: SignedIn = client.json(Method::POST, "/v1/auth/verify-otp", Some(&body)).await?;
    if json {
        return out::json(&signed_in);
    }
    out::line(&signed_in.token);
    out::note(format!("the token of {}; it is good for a while", signed_in.user_id));
    out::note("hint: BASTIDE_API_KEY takes it as it takes a key");
    Ok(())
}

async fn show(client: &Client, json: bool) -> Result<(), Failure> {
    let me: Tenant = client.json(Method::GET, "/v1/tenants/me", None).await?;
    if json {
        return out::json(&me);
    }
    let row = vec![
        me.tenant_id,
        me.email.unwrap_or_else(|| "-".into()),
        me.plan,
        me.created_at.to_string(),
    ];
    out::table(&["ID", "EMAIL", "PLAN", "CREATED"], vec![row]);
    Ok(())
}
